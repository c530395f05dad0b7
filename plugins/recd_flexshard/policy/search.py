"""`goal: auto`: the best way for every collection, with the replicas of all tables in one optimum.

A way is how a table's rows get to the ranks that ask: as TorchRec's own plan has the table; in a
row-wise table whose ids travel as they are, once per rank or once per node (the level), with
replicas or without; or, for pooled tables, as row-wise sums of the bags that have a row without a
replica.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from recd_flexshard.policy.best_so_far import WORTH, BestSoFar
from recd_flexshard.policy.candidates import Candidates
from recd_flexshard.policy.sized_ledgers import SizedLedgers
from recd_plugins.api.planning import (
    AS_TORCHREC,
    Coalesce,
    Ledger,
    Prices,
    ProfiledTable,
    TableLedger,
    TableSizes,
)

__all__ = ["PlanSearch", "Way", "way_of"]

Way = Literal["torchrec", "none", "rank", "node", "sums"]
LEVELS: tuple[Coalesce, ...] = ("none", "rank", "node")
PASSES = 3
"""How often all collections are gone through for other ways."""
COVERED = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)
"""Shares of a collection's lookups that replicas in front of sums are tried for."""
MOST_SPLITS = 32
"""The most splits of a collection that are tried."""
FAR_APART = 8
"""The number of these that are tried first, far from each other; then the neighbours of the best
are tried."""


class PlanSearch:
    """Which plans are weighed, one after another; `so_far` has the best of them, and
    `considered_plans` reports what each collection might have had beside it."""

    def __init__(
        self,
        tables: Mapping[str, ProfiledTable],
        prices: Prices,
        *,
        budget: float = 0.0,
        tiers: Literal[1, 2, 3] = 3,
    ) -> None:
        """`budget` is extra bytes a rank over what TorchRec's own plan takes, or row-wise tables
        where that plan is not known."""
        self.tables = tables
        self.prices = prices
        self.ledgers = SizedLedgers.of(tables, prices)
        self._within_budget = Candidates(self.ledgers, budget=budget, tiers=tiers)
        self.so_far = BestSoFar(
            self.ledgers.own,
            self._within_budget,
            budget=budget,
            knows_torchrec=any(table.shards is not None for table in tables.values()),
        )
        self._summed: dict[str, TableSizes] = {}
        """The sizes of tables whose sums have replicas in front of them in the best plan."""

    @property
    def best(self) -> Ledger:
        return self.so_far.ledger

    @property
    def own(self) -> Ledger:
        return self.so_far.own

    def run(self) -> Ledger:
        """One way for all tables first, then each collection's own, then each table's.

        The levels none and rank, which are the simplest, are weighed before replicas; node, which
        waits the most, comes last.
        """
        self.so_far.weigh(self.own)
        for level in LEVELS[:2]:
            self.so_far.weigh(self.ledgers.by(self.without_replicas(self._one_level(level))))
        for level in self.levels:
            self._weigh_all(self._one_level(level))
        self._try_ways_of_collections()
        self._try_within_collections()
        self._try_levels_of_tables()
        return self.best

    @cached_property
    def collections(self) -> Mapping[str, tuple[str, ...]]:
        """The tables of each collection, by its path."""
        found: dict[str, tuple[str, ...]] = {}
        for name, table in self.tables.items():
            found[table.collection] = (*found.get(table.collection, ()), name)
        return found

    @property
    def levels(self) -> tuple[Coalesce, ...]:
        """The levels, of which node is none of its own if each rank is a node."""
        return LEVELS if self.prices.cluster.ranks_per_node > 1 else LEVELS[:2]

    @property
    def ways(self) -> dict[str, Way]:
        """Each table's way in the best plan."""
        return {name: way_of(one) for name, one in self.best.tables.items()}

    def ways_of(self, names: tuple[str, ...]) -> tuple[Way, ...]:
        """The ways that a collection may choose from."""
        pooled = any(self.tables[name].bags for name in names)
        return ("torchrec", *(self.levels[1:] if pooled else self.levels))

    def without_replicas(self, ways: Mapping[str, Way]) -> dict[str, TableSizes]:
        """Sizes without replicas."""
        found = {}
        for name, way in ways.items():
            if way == "sums":
                found[name] = self._summed.get(name, TableSizes())
            elif way != "torchrec":
                found[name] = TableSizes(coalesce=way)
        return found

    def candidates(self, ways: Mapping[str, Way]) -> list[Ledger]:
        """The candidates with each table's way; those whose sums travel have the replicas that are
        best known. Beside pooled tables, sequences may be the only ones with replicas: those of
        pooled tables must save more."""
        sizes = self.without_replicas(ways)
        names = [name for name in sizes if ways[name] != "sums"]
        found = self._within_budget.of(sizes, names)
        sequences = [name for name in names if not self.tables[name].bags]
        if 0 < len(sequences) < len(names):
            found = [*found, *self._within_budget.of(sizes, sequences)]
        return found

    def in_front_of_sums(self, names: tuple[str, ...]) -> Iterator[Ledger]:
        """Plans in which the hottest rows of a pooled collection are on every rank, and bags that
        have others are summed at home, row-wise.

        A sum is saved only with the last of its bag's rows, so single rows have no prices.
        """
        if not self._within_budget.tiers or not all(self.tables[name].bags for name in names):
            return
        rest = self.sizes_of_others(names)
        merged, multiple = self.ledgers.merged(names), self.prices.cluster.world_size
        each = merged.rows.counts * merged.rows.p
        before = np.cumsum(each) - each
        for share in COVERED:
            taken = np.where(before < share * merged.rows.lookups, merged.rows.counts, 0)
            rows = merged.per_table(taken)
            sizes = {}
            for name, count in zip(merged.names, rows.tolist(), strict=True):
                every = count == self.tables[name].rows.num_rows
                sizes[name] = TableSizes(
                    replicated=count if every else count // multiple * multiple
                )
            yield self.ledgers.by(rest | sizes)

    def sizes_of_others(self, names: tuple[str, ...]) -> dict[str, TableSizes]:
        """The sizes of all other tables in the best plan."""
        return {name: one.sizes for name, one in self.best.tables.items() if name not in names}

    def _try_ways_of_collections(self) -> None:
        """Weigh the other ways of each collection, the others as in the best plan, until none is
        better: what pays for one depends on the others."""
        if len(self.collections) < 2:
            return
        for _ in range(PASSES):
            before = self.best
            for names in self.collections.values():
                for way in self.ways_of(names):
                    ways = self.ways | dict.fromkeys(names, way)
                    self._weigh_all(ways, WORTH / len(self.collections))
            if self.best is before:
                return

    def _try_within_collections(self) -> None:
        """Weigh plans in which tables of one collection have different ways, or replicas are in
        front of its sums."""
        for names in self.collections.values():
            self._split(names)
            for ledger in self.in_front_of_sums(names):
                if self.so_far.weigh(ledger):
                    self._summed |= {name: ledger.tables[name].sizes for name in names}

    def _try_levels_of_tables(self) -> None:
        """Weigh the plan in which each table has its best level."""
        levels = self._best_levels()
        if levels != self.ways and len(set(levels.values())) > 1:
            self._weigh_all(levels, 0.0)

    def _one_level(self, level: Coalesce) -> dict[str, Way]:
        """The same level for all tables that may have it; sums are TorchRec's."""
        return {
            name: "torchrec" if table.bags and level == "none" else level
            for name, table in self.tables.items()
        }

    def _split(self, names: tuple[str, ...]) -> None:
        """Weigh plans in which some of a collection's pooled tables are TorchRec's, and rows of the
        others travel, beginning with those that gain the most by it."""
        movable = [name for name in names if self.tables[name].bags]
        if len(movable) < 2 or any(self.tables[name].shards is None for name in movable):
            return
        for level in self.levels[1:]:
            ways = self.ways | dict.fromkeys(movable, level)
            for ledger in self.candidates(ways):
                rows = {name: ledger.tables[name].sizes for name in movable}
                rest = {n: one.sizes for n, one in ledger.tables.items() if n not in rows}
                own = self.ledgers.by(rest)
                gains = {
                    name: self.ledgers.marginal(own, name) - self.ledgers.marginal(ledger, name)
                    for name in rows
                }
                order = sorted(rows, key=lambda name: -gains[name])
                found = self._fastest_split(rest, [(name, rows[name]) for name in order])
                if self.so_far.weigh(found):
                    self._weigh_all(self.ways, 0.0)

    def _fastest_split(
        self, rest: Mapping[str, TableSizes], rows: Sequence[tuple[str, TableSizes]]
    ) -> Ledger:
        """The fastest plan with `rest` in which the rows of the first few of these tables
        travel."""

        def ms(count: int) -> float:
            return self.ledgers.by({**rest, **dict(rows[:count])}).ms

        counts = range(1, len(rows), max(1, len(rows) // MOST_SPLITS))
        apart = max(1, len(counts) // FAR_APART)
        taken = {count: ms(count) for count in counts[::apart]}
        best = counts.index(min(taken, key=taken.__getitem__))
        for count in counts[max(0, best - apart + 1) : best + apart]:
            if count not in taken:
                taken[count] = ms(count)
        fastest = min(sorted(taken), key=taken.__getitem__)
        return self.ledgers.by({**rest, **dict(rows[:fastest])})

    def _best_levels(self) -> dict[str, Way]:
        """Each table's best level of coalescing, with its sizes and the other tables unchanged.
        Bags keep theirs, and so do tables that are TorchRec's."""
        ledger = self.best
        for name, one in ledger.tables.items():
            if one.table.bags or one.sizes.as_torchrec:
                continue
            tries = [dataclasses.replace(one.sizes, coalesce=level) for level in self.levels]
            if one.table.shards is not None:
                tries.append(AS_TORCHREC)
            ledgers = [self.ledgers.changed(ledger, name, size) for size in tries]
            ledger = min(ledgers, key=lambda found: found.ms)
        return {name: way_of(one) for name, one in ledger.tables.items()}

    def _weigh_all(self, ways: Mapping[str, Way], worth: float = WORTH) -> None:
        for ledger in self.candidates(ways):
            self.so_far.weigh(ledger, worth)


def way_of(one: TableLedger) -> Way:
    """The way of a table, by its sizes in a ledger."""
    if one.sizes.as_torchrec:
        return "torchrec"
    return "sums" if one.table.bags and one.sizes.coalesce == "none" else one.sizes.coalesce
