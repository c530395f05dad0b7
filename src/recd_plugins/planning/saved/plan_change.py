"""Two tier plans side by side: which rows enter a tier, which leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recd_plugins.planning.tier_plan import Coalesce, Rows, TablePlan, TierPlan

__all__ = ["TableChange", "TierChange", "plan_changes"]


class TierChange(NamedTuple):
    """One tier of one table, in rows."""

    before: int
    after: int
    enter: int
    leave: int

    @classmethod
    def of(cls, before: Rows, after: Rows) -> TierChange:
        stay = len(np.intersect1d(before, after, assume_unique=True))
        return cls(len(before), len(after), len(after) - stay, len(before) - stay)


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """What a table has in one plan and in the other; rows that a tier orders anew stay in it."""

    replicated: TierChange
    per_node: TierChange
    coalesce: tuple[Coalesce, Coalesce]
    """Before, after."""

    def __str__(self) -> str:
        said = [
            f"{name} {tier.before:,} -> {tier.after:,} rows ({tier.enter:,} enter, "
            f"{tier.leave:,} leave)"
            for name, tier in (("DP", self.replicated), ("Flex", self.per_node))
            if tier.enter or tier.leave
        ]
        if self.coalesce[0] != self.coalesce[1]:
            said.append("coalesced: {} -> {}".format(*self.coalesce))
        return "; ".join(said or ["the same rows in each tier"])


def plan_changes(before: TierPlan, after: TierPlan) -> Mapping[str, TableChange]:
    """By table of either plan."""
    found = {}
    for name in sorted(before.tables.keys() | after.tables.keys()):
        old, new = (one.tables.get(name, TablePlan(table=name)) for one in (before, after))
        found[name] = TableChange(
            replicated=TierChange.of(old.replicated, new.replicated),
            per_node=TierChange.of(old.per_node, new.per_node),
            coalesce=(old.coalesce, new.coalesce),
        )
    return found
