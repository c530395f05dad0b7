"""The candidates of `goal: auto`: for given levels of coalescing, the plan without replicas, and
those with the best sizes of each set of tiers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from recd_flexshard.policy.offers import PER_NODE, REPLICATED, ROW_WISE, Offers
from recd_flexshard.policy.optimum import Optimum
from recd_flexshard.policy.sized_ledgers import SizedLedgers
from recd_plugins.api.planning import (
    Coalesce,
    Integers,
    Ledger,
    MergedRows,
    Prices,
    TableSizes,
    home_load,
)

__all__ = ["Candidates", "allowed_tiers"]


class Candidates:
    """The candidates within a budget; those of the same sizes are made once, since the search comes
    back to them."""

    def __init__(self, ledgers: SizedLedgers, *, budget: float, tiers: Literal[1, 2, 3]) -> None:
        """`budget` is extra bytes a rank over what TorchRec's own plan takes."""
        self._ledgers = ledgers
        self._budget = budget
        self._prices = ledgers.prices
        self.tiers = allowed_tiers(ledgers.prices, tiers)
        """The tiers that rows may be in beside home."""
        self._made: dict[tuple[Any, ...], list[Ledger]] = {}
        """By sizes without replicas, and by the tables that may have any."""
        self.least = 0.0
        """The least extra bytes a rank of all that was weighed."""

    def of(self, sizes: Mapping[str, TableSizes], names: Sequence[str]) -> list[Ledger]:
        """The ledger of these `sizes`, which are without replicas, and those in which the tables of
        these `names` have the best sizes."""
        key = tuple(sizes.items()), tuple(names)
        if key not in self._made:
            found = {id(one): one for one in self._make(sizes, names)}
            self._made[key] = list(found.values())
        return self._made[key]

    def extra(self, ledger: Ledger) -> float:
        """Bytes a rank over TorchRec's own plan: all bytes, or those that stay from step to step,
        whichever are fewer.

        Exchanges need buffers while they last, more of them where ids are coalesced. A budget
        counts what stays, unless it asks to save memory.
        """
        own = self._ledgers.own
        over = ledger.memory - own.memory
        if self._budget < 0:
            return over
        return min(over, ledger.static_memory - own.static_memory)

    def _make(self, sizes: Mapping[str, TableSizes], names: Sequence[str]) -> Iterator[Ledger]:
        """The candidates, some of them twice. Where exchanges overlap, only a whole plan shows how
        much is hidden: so the best sizes are sought for several guesses of that."""
        alone = self._ledgers.by(sizes)
        yield alone
        if not self.tiers:
            self.least = min(self.least, self.extra(alone))
            return
        if not names:
            return
        levels: dict[str, Coalesce] = {name: sizes[name].coalesce for name in names}
        fixed = {name: size for name, size in sizes.items() if name not in levels}
        merged, cluster = self._ledgers.merged(tuple(levels)), self._prices.cluster
        busy = self._busy(levels)
        sets = [*((tier,) for tier in self.tiers if len(self.tiers) > 1), self.tiers]
        for hidden in sorted({cluster.overlap, cluster.overlap / 2, 0.0}):
            weighed = dataclasses.replace(
                self._prices, cluster=dataclasses.replace(cluster, overlap=hidden)
            )
            offers = Offers.of(merged, weighed, levels, busy)
            for counted, over in self._by_memory(offers, alone):
                base = float(merged.rows.counts @ counted.memory[ROW_WISE]) - over
                for allowed in sets:
                    optimum = Optimum.of(merged, counted, allowed, base)
                    self.least = min(self.least, float(optimum.memory[0]))
                    if optimum.memory[0] <= self._budget:
                        taken = optimum.at(self._budget, cluster.world_size)
                        yield from self._halved(merged, taken, levels, fixed)

    def _by_memory(self, offers: Offers, alone: Ledger) -> Iterator[tuple[Offers, float]]:
        """Offers with the memory that a budget may be for, as in `extra`: all of it, or what
        stays; and the bytes of it that the tables take without replicas, over TorchRec's plan."""
        yield offers, alone.memory - self._ledgers.own.memory
        if self._budget >= 0:
            staying = dataclasses.replace(offers, memory=offers.static_memory)
            yield staying, alone.static_memory - self._ledgers.own.static_memory

    def _busy(self, levels: Mapping[str, Coalesce]) -> dict[str, float]:
        """For each table, the multiple of its share that the busiest of all ranks serves."""
        tables = self._ledgers.tables
        loads = {
            name: home_load(self._prices, tables[name], coalesce=level)
            for name, level in levels.items()
        }
        weights = {name: tables[name].rows.lookups * tables[name].width for name in loads}
        every = sum(weights[name] * load for name, load in loads.items())
        busiest = int(np.argmax(every))
        return {name: float(load[busiest]) for name, load in loads.items()}

    def _halved(
        self,
        merged: MergedRows,
        found: tuple[Integers, Integers],
        levels: Mapping[str, Coalesce],
        fixed: Mapping[str, TableSizes],
    ) -> Iterator[Ledger]:
        """The ledgers of these sizes beside `fixed` ones, of their halves and so on, as long as
        that is faster; the smallest sizes come first.

        The prices of single rows leave out that replicas and tables each do their own work during
        the other's traffic.
        """
        ledgers: list[Ledger] = []
        while any(tier.any() for tier in found):
            ledgers.append(self._ledgers.by({**fixed, **merged.sizes(*found, levels)}))
            if len(ledgers) > 1 and ledgers[-1].ms >= ledgers[-2].ms:
                break
            multiple = self._prices.cluster.world_size
            replicated, per_node = (tier // 2 // multiple * multiple for tier in found)
            found = replicated, per_node
        yield from reversed(ledgers)


def allowed_tiers(prices: Prices, tiers: Literal[1, 2, 3]) -> tuple[int, ...]:
    """The tiers of replicas. `per_node` differs from `replicated` only where there are several
    nodes of several ranks."""
    if tiers == 1:
        return ()
    cluster = prices.cluster
    per_node = tiers == 3 and cluster.n_nodes > 1 and cluster.ranks_per_node > 1
    return (REPLICATED, PER_NODE) if per_node else (REPLICATED,)
