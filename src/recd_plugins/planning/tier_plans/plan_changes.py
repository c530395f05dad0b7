"""What changes from one tier plan to another: the rows that enter and leave each tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recd_plugins.planning.tier_plans.tier_plan import Coalesce, Rows, TablePlan, TierPlan

__all__ = ["TableChange", "TierChange", "plan_changes"]


def plan_changes(before: TierPlan, after: TierPlan) -> Mapping[str, TableChange]:
    """The change of each table of either plan."""
    found = {}
    for name in sorted({*before.tables, *after.tables, *before.mapped, *after.mapped}):
        old, new = (one.tables.get(name, TablePlan(table=name)) for one in (before, after))
        found[name] = TableChange(
            replicated=TierChange.of(old.replicated, new.replicated),
            per_node=TierChange.of(old.per_node, new.per_node),
            coalesce=(old.coalesce, new.coalesce),
            mapped=(name in before.mapped, name in after.mapped),
        )
    return found


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """The change of a table's tiers from one plan to another. Rows that only change places within a
    tier stay in it."""

    replicated: TierChange
    per_node: TierChange
    coalesce: tuple[Coalesce, Coalesce]
    """The coalescing before, and after."""
    mapped: tuple[bool, bool]
    """Whether the table lay in mapped files before, and does after."""

    def __str__(self) -> str:
        changes = [
            f"{name} {tier.before:,} -> {tier.after:,} rows ({tier.enter:,} enter, "
            f"{tier.leave:,} leave)"
            for name, tier in (("replicated", self.replicated), ("per_node", self.per_node))
            if tier.enter or tier.leave
        ]
        if self.coalesce[0] != self.coalesce[1]:
            changes.append("coalesced: {} -> {}".format(*self.coalesce))
        if self.mapped[0] != self.mapped[1]:
            homes = ("mapped" if mapped else "memory" for mapped in self.mapped)
            changes.append("home: {} -> {}".format(*homes))
        return "; ".join(changes or ["the same rows in each tier"])


class TierChange(NamedTuple):
    """The change of one tier of one table, in rows."""

    before: int
    after: int
    enter: int
    leave: int

    @classmethod
    def of(cls, before: Rows, after: Rows) -> TierChange:
        stay = len(np.intersect1d(before, after, assume_unique=True))
        return cls(len(before), len(after), len(after) - stay, len(before) - stay)
