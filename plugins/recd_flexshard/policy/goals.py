"""The sizes of every tier of every table, found for a goal."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

from recd_flexshard.policy.breakpoints import breakpoints
from recd_flexshard.policy.candidates import allowed_tiers
from recd_flexshard.policy.offers import PER_NODE, ROW_WISE, Offers
from recd_flexshard.policy.optimum import Optimum, too_little
from recd_flexshard.policy.search import PlanSearch
from recd_plugins.api.planning import (
    Coalesce,
    Frontier,
    Ledger,
    MergedRows,
    Prices,
    ProfiledTable,
    TableSizes,
    marginal_ms,
)

__all__ = ["Goal", "choose", "frontier"]

Goal = Literal["memory_neutral", "max_memory_saving", "min_communication", "budget", "auto"]
Tables = Mapping[str, ProfiledTable]


def choose(
    tables: Tables,
    prices: Prices,
    *,
    goal: Goal = "memory_neutral",
    tiers: Literal[1, 2, 3] = 3,
    budget: float = 0.0,
    coalesce: Coalesce = "none",
) -> Ledger:
    """The ledger of the sizes that a goal asks for; `budget` is extra bytes a rank.

    memory_neutral     the paper's breakpoints, at no more memory than all rows at home
    budget             the least time within `budget`, which may be negative
    max_memory_saving  each row where it takes the least memory
    min_communication  each row where it takes the least time
    auto               the least time within `budget` over TorchRec's own plan, over coalescing
                       too: that plan is the first candidate, so that none slower is taken

    Rows come in multiples of the world size: budgets hold but for what rounding down changes.
    """
    if goal == "auto":
        return PlanSearch(tables, prices, budget=budget, tiers=tiers).run()
    merged, levels = MergedRows.of(tables), dict.fromkeys(tables, coalesce)
    offers = Offers.of(merged, prices, levels)
    multiple, allowed = prices.cluster.world_size, allowed_tiers(prices, tiers)
    if not allowed:
        alone = Ledger.of(tables, {n: TableSizes(coalesce=coalesce) for n in tables}, prices)
        least = alone.memory - Ledger.of(tables, {}, prices).memory
        if goal == "budget" and budget < min(least, 0.0):
            raise too_little(least, budget)
        return alone
    if goal == "memory_neutral":
        # Coalescing alone may save memory: neutral is what it is without replicas.
        among: Literal[2, 3] = 3 if PER_NODE in allowed else 2
        found = breakpoints(merged, offers, tiers=among, multiple=multiple)
    else:
        optimum = Optimum.of(merged, offers, allowed, _base(tables, merged, offers, prices, levels))
        least = float(optimum.memory[0])
        if budget >= 0:  # bags that are coalesced need buffers, whether or not rows have replicas
            budget += max(least, 0.0)
        within = {"budget": budget, "max_memory_saving": least, "min_communication": None}[goal]
        found = optimum.at(within, multiple)
    return Ledger.of(tables, merged.sizes(*found, levels), prices)


def frontier(
    tables: Tables,
    prices: Prices,
    *,
    tiers: Literal[1, 2, 3] = 3,
    plan: Mapping[str, TableSizes] = MappingProxyType({}),
) -> Frontier:
    """Every trade of memory against time that is worth making: the Pareto curve, whose ids are
    coalesced as in `plan`.

    Tables whose sums travel are as `plan` has them: a sum is spared with the last of its bag's
    rows, so that no row of theirs has a price of its own.
    """
    sizes = {name: plan.get(name, TableSizes()) for name in tables}
    levels = {
        name: sizes[name].coalesce
        for name, table in tables.items()
        if not table.bags or sizes[name].coalesce != "none"
    }
    alone = Ledger.of(
        tables, sizes | {name: TableSizes(coalesce=each) for name, each in levels.items()}, prices
    )
    memory = alone.memory - Ledger.of(tables, {}, prices).memory
    ms = float(marginal_ms(alone.cost.mean, prices.cluster))
    if not levels or not allowed_tiers(prices, tiers):
        return Frontier(memory=np.array([memory]), ms=np.array([ms]))
    merged = MergedRows.of({name: tables[name] for name in levels})
    offers = Offers.of(merged, prices, levels)
    counts = merged.rows.counts
    base = float(counts @ offers.memory[ROW_WISE]) - memory
    curve = Optimum.of(merged, offers, allowed_tiers(prices, tiers), base)
    return Frontier(memory=curve.memory, ms=curve.ms + ms - float(counts @ offers.ms[ROW_WISE]))


def _base(
    tables: Tables,
    merged: MergedRows,
    offers: Offers,
    prices: Prices,
    levels: Mapping[str, Coalesce],
) -> float:
    """The memory of plain row-wise, less what is no row's: sums."""
    sizes = {name: TableSizes(coalesce=levels.get(name, "none")) for name in tables}
    rows = float(merged.rows.counts @ offers.memory[ROW_WISE])
    alone = Ledger.of(tables, sizes, prices).memory
    return Ledger.of(tables, {}, prices).memory - (alone - rows)
