"""What a policy's choice takes by the prices, compared with the plan of the planner behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from recd_plugins.notices import Notice, Slower, Unused
from recd_plugins.planning.explain.plan_report import PlanReport, compared
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.tables.planned_shards import planned_shards
from recd_plugins.tiers.planner.plan_notices import OWN, in_backticks

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

    from recd_plugins.planning.tables.model_tables import ModelTable

__all__ = ["priced_beside", "slower_than_own"]


def slower_than_own(
    name: str, slot: str, asked_by: Sequence[str], ms: float, other: float, *, forced: bool
) -> tuple[Notice, str]:
    """The notice that a planner's choice takes longer, `ms`, than TorchRec's own plan, `other`; and
    what becomes of the choice, in words."""
    what, how = f"{slot}: {name}", compared(ms, other, OWN)
    why = (
        f"by the prices of this topology its plan is {how}: lookups and exchanges of tables take "
        f"{ms:.3g} ms a step in place of {other:.3g}"
    )
    slower = f"{name}: this plan is {how}, by the prices of this topology"
    if forced:
        cure = f"Take {in_backticks(asked_by)} out of registry.yaml for TorchRec's own plan."
        return Slower(what=what, why=why, cure=cure), f"{slower}; it is taken as asked."
    cure = f"Set `{slot}.force: true` to take it; `topology` says what links do."
    return Unused(what=what, why=why, cure=cure), (
        f"{slower}: it is not taken, and every table is left to TorchRec's planner. "
        f"Set {slot}.force to take it."
    )


def priced_beside(
    report: PlanReport,
    plan: ShardingPlan,
    found: Mapping[str, ModelTable],
    mapped: Collection[str],
) -> PlanReport:
    """The report, in which the tables that are left to the planner behind are priced where `plan`
    has them: with others row-wise, that may be on other ranks."""
    shards = planned_shards(plan, found)
    every = report.ledger.tables
    tables = {
        name: dataclasses.replace(
            one.table,
            shards=shards.get(name) if one.sizes.as_torchrec else one.table.shards,
            mapped=name in mapped,
        )
        for name, one in every.items()
    }
    sizes = {name: one.sizes for name, one in every.items()}
    ledger = Ledger.of(tables, sizes, report.ledger.prices)
    return dataclasses.replace(report, ledger=ledger, own=report.torchrec)
