"""The sizes of every tier of every table, found for a goal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

from recd_flexshard.policy.breakpoints import breakpoints
from recd_flexshard.policy.offers import PER_NODE, REPLICATED, Offers
from recd_flexshard.policy.optimum import Optimum, too_little
from recd_plugins.api.planning import (
    Coalesce,
    Integers,
    Ledger,
    MergedRows,
    Prices,
    SequenceTable,
    TableSizes,
)

__all__ = ["Goal", "auto", "choose", "frontier"]

Goal = Literal["memory_neutral", "max_memory_saving", "min_communication", "budget", "auto"]
Tables = Mapping[str, SequenceTable]

LEVELS: tuple[Coalesce, ...] = ("none", "rank", "node")
WORTH = 0.02
"""The share of a step that another plan must save to be taken for one that came before it, and
is simpler."""


def choose(
    tables: Tables,
    prices: Prices,
    *,
    goal: Goal = "memory_neutral",
    tiers: Literal[2, 3] = 3,
    budget: float = 0.0,
    coalesce: Coalesce = "none",
) -> Ledger:
    """The ledger of the sizes that a goal asks for; `budget` is extra bytes a rank.

    memory_neutral     the paper's breakpoints, at no more memory than all-RW
    budget             the least time within `budget`, which may be negative
    max_memory_saving  each row where it takes the least memory
    min_communication  each row where it takes the least time
    auto               the least time within `budget`, over coalescing too

    Rows come in multiples of the world size: budgets hold but for what rounding down changes.
    """
    if goal == "auto":
        return auto(tables, prices, budget=budget, tiers=tiers)
    merged, levels = MergedRows.of(tables), dict.fromkeys(tables, coalesce)
    offers = Offers.of(merged, prices, levels)
    multiple, allowed = prices.cluster.world_size, _allowed(prices, tiers)
    if goal == "memory_neutral":
        # Coalescing alone may save memory: neutral is what it is without replicas.
        flex: Literal[2, 3] = 3 if PER_NODE in allowed else 2
        found = breakpoints(merged, offers, tiers=flex, multiple=multiple)
    else:
        base = Ledger.of(tables, {}, prices).cost.memory
        optimum = Optimum.of(merged, offers, allowed, base)
        least = float(optimum.memory[0])
        within = {"budget": budget, "max_memory_saving": least, "min_communication": None}[goal]
        found = optimum.at(within, multiple)
    return Ledger.of(tables, merged.sizes(*found, levels), prices)


def auto(
    tables: Tables, prices: Prices, *, budget: float = 0.0, tiers: Literal[2, 3] = 3
) -> Ledger:
    """The least expected time over coalescing, tiers and their sizes, within `budget` extra
    bytes a rank over plain row-wise, which is the first candidate: never slower than it.

    One level of coalescing for all tables first, then each table's own, and sizes again. None and
    rank, which have the least to do, are met before replicas; node, which waits the most, last.
    """
    merged = MergedRows.of(tables)
    best = _Best(Ledger.of(tables, {}, prices), budget)
    for level in LEVELS[:2]:
        alone = dict.fromkeys(tables, TableSizes(coalesce=level))
        best.meet(Ledger.of(tables, alone, prices))
    for level in LEVELS:
        for ledger in _candidates(merged, best, dict.fromkeys(tables, level), tiers):
            best.meet(ledger)
    levels = _levels(best.found())
    if len(set(levels.values())) > 1:
        for ledger in _candidates(merged, best, levels, tiers):
            best.meet(ledger, worth=0.0)
    return best.found()


def frontier(
    tables: Tables,
    prices: Prices,
    *,
    tiers: Literal[2, 3] = 3,
    coalesce: Mapping[str, Coalesce] = MappingProxyType({}),
) -> Optimum:
    """Every trade of memory against time that is worth making: the Pareto curve.

    `coalesce` says how the ids of each table travel; of others, as they are.
    """
    merged = MergedRows.of(tables)
    offers = Offers.of(merged, prices, coalesce)
    base = Ledger.of(tables, {}, prices).cost.memory
    return Optimum.of(merged, offers, _allowed(prices, tiers), base)


def _allowed(prices: Prices, tiers: Literal[2, 3]) -> tuple[int, ...]:
    """Flex is a tier of its own where there are nodes of several ranks."""
    cluster = prices.cluster
    flex = tiers == 3 and cluster.n_nodes > 1 and cluster.ranks_per_node > 1
    return (REPLICATED, PER_NODE) if flex else (REPLICATED,)


class _Best:
    """The fastest ledger within the budget of those that it met, but for `WORTH`."""

    def __init__(self, plain: Ledger, budget: float) -> None:
        self.plain = plain
        self.budget = budget
        self.least = 0.0
        """Extra bytes a rank of what takes the least memory, of all that was weighed."""
        self._found: Ledger | None = None
        self.meet(plain)

    def meet(self, ledger: Ledger, worth: float = WORTH) -> None:
        extra = ledger.cost.memory - self.plain.cost.memory
        limit = float("inf") if self._found is None else (1 - worth) * self._found.ms
        if extra <= self.budget and ledger.ms < limit:
            self._found = ledger

    def found(self) -> Ledger:
        if self._found is None:
            raise too_little(self.least, self.budget)
        return self._found


def _candidates(
    merged: MergedRows, best: _Best, levels: Mapping[str, Coalesce], tiers: Literal[2, 3]
) -> Iterator[Ledger]:
    """Ledgers with each table's ids coalesced by `levels`: without replicas, and with the best
    sizes of each set of tiers.

    Where exchanges overlap, sizes are sought for several guesses of how much of them is hidden.
    Sizes are halved as long as that is faster: prices of single rows do not know that replicas
    and tables each have their own work done beside the other's traffic.
    """
    plain, prices = best.plain, best.plain.prices
    tables = {name: one.table for name, one in plain.tables.items()}
    cluster, base = prices.cluster, plain.cost.memory
    none = np.zeros(len(tables), np.int64)
    yield Ledger.of(tables, merged.sizes(none, none, levels), prices)
    every = _allowed(prices, tiers)
    sets = [*((tier,) for tier in every if len(every) > 1), every]
    for hidden in sorted({cluster.overlap, cluster.overlap / 2, 0.0}):
        weighed = dataclasses.replace(prices, cluster=dataclasses.replace(cluster, overlap=hidden))
        offers = Offers.of(merged, weighed, levels)
        for allowed in sets:
            optimum = Optimum.of(merged, offers, allowed, base)
            best.least = min(best.least, float(optimum.memory[0]))
            if optimum.memory[0] <= best.budget:
                found = optimum.at(best.budget, cluster.world_size)
                yield from _halved(tables, merged, found, levels, prices)


def _halved(
    tables: Tables,
    merged: MergedRows,
    found: tuple[Integers, Integers],
    levels: Mapping[str, Coalesce],
    prices: Prices,
) -> Iterator[Ledger]:
    """The sizes, their halves and so on, as long as these are faster; the least come first."""
    ledgers: list[Ledger] = []
    while any(tier.any() for tier in found):
        ledgers.append(Ledger.of(tables, merged.sizes(*found, levels), prices))
        if len(ledgers) > 1 and ledgers[-1].ms >= ledgers[-2].ms:
            break
        multiple = prices.cluster.world_size
        replicated, per_node = (tier // 2 // multiple * multiple for tier in found)
        found = replicated, per_node
    yield from reversed(ledgers)


def _levels(ledger: Ledger) -> dict[str, Coalesce]:
    """Each table's best level of coalescing, with its sizes and the other tables as they are."""
    for name, one in ledger.tables.items():
        tries = [
            Ledger.of(
                {name: one.table},
                {name: dataclasses.replace(one.sizes, coalesce=level)},
                ledger.prices,
            ).tables
            for level in LEVELS
        ]
        ledger = min(
            (dataclasses.replace(ledger, tables={**ledger.tables, **each}) for each in tries),
            key=lambda found: found.ms,
        )
    return {name: one.sizes.coalesce for name, one in ledger.tables.items()}
