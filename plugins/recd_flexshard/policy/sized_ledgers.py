"""The ledgers of one set of tables at one set of prices, by the sizes of all tables.

Each ledger is made once, and so are the prices of each table in it: plans that are compared differ
in few tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from recd_plugins.api.planning import (
    AS_TORCHREC,
    Ledger,
    MergedRows,
    PlannedShards,
    Prices,
    ProfiledTable,
    TableLedger,
    TableSizes,
    marginal_ms,
    remembered,
    sharded_cost,
    travelling_shares,
)

__all__ = ["SizedLedgers"]

WHOLE = ("table_wise", "column_wise", "table_column_wise")
"""The sharding types of TorchRec that do not spread a table's rows over ranks."""


class SizedLedgers:
    """The ledgers by sizes. Tables without sizes are as TorchRec has them, or row-wise where its
    plan is not known."""

    def __init__(self, tables: Mapping[str, ProfiledTable], prices: Prices) -> None:
        self.tables = tables
        self.prices = prices
        self._priced: dict[tuple[str, TableSizes, int, float | None], TableLedger] = {}
        """The ledger of a table by its sizes and by where its shards are."""
        self._marginals: dict[int, float] = {}
        """Milliseconds of the ledgers in `_priced`, latencies aside."""
        self._made: dict[tuple[TableSizes, ...], Ledger] = {}
        """The ledger by the sizes of all tables."""
        self._latest: dict[
            str, tuple[TableSizes, PlannedShards | None, float | None, TableLedger]
        ] = {}
        """The arguments by which the tables of the latest ledger were priced, and their prices."""
        self._placed: dict[tuple[str, ...], Mapping[str, PlannedShards | None]] = {}
        self._moved: dict[tuple[str, tuple[int, ...]], PlannedShards] = {}
        """The shards of a table on these ranks, always the same object: they are compared by
        identity."""
        self._merged: dict[tuple[str, ...], MergedRows] = {}

    @classmethod
    def of(cls, tables: Mapping[str, ProfiledTable], prices: Prices) -> SizedLedgers:
        """The ledgers of earlier searches with another budget, if there are any: `recd advise`
        makes many searches."""
        return remembered((cls, *tables.items(), prices), lambda: cls(tables, prices))

    @cached_property
    def own(self) -> Ledger:
        """The ledger of all tables as TorchRec has them."""
        return self.by({})

    def by(self, sizes: Mapping[str, TableSizes]) -> Ledger:
        """The prices of these sizes."""
        every = {name: sizes.get(name, none) for name, none in self._without.items()}
        named = tuple(every.values())
        found = self._made.get(named)
        if found is None:
            found = self._made[named] = self._make(every)
        return found

    def changed(self, ledger: Ledger, name: str, size: TableSizes) -> Ledger:
        """One of the ledgers, with other sizes of one of its tables of sequences. No other table is
        looked at where the table's ids travel in both, and the ledger is not kept: a thousand
        tables have thousands of them."""
        one = ledger.tables[name]
        if size == one.sizes:
            return ledger
        if one.table.bags or size.as_torchrec or one.sizes.as_torchrec:
            sizes = {other: each.sizes for other, each in ledger.tables.items()}
            return self.by(sizes | {name: size})
        priced = self._price(name, size, self.tables[name].shards, None)
        return Ledger(prices=self.prices, tables={**ledger.tables, name: priced})

    def merged(self, names: tuple[str, ...]) -> MergedRows:
        """The rows of these tables in one order."""
        if names not in self._merged:
            self._merged[names] = MergedRows.of({name: self.tables[name] for name in names})
        return self._merged[names]

    def marginal(self, ledger: Ledger, table: str) -> float:
        """Milliseconds of a table in one of the ledgers, latencies aside."""
        one = ledger.tables[table]
        if id(one) not in self._marginals:
            self._marginals[id(one)] = float(marginal_ms(one.cost.mean, self.prices.cluster))
        return self._marginals[id(one)]

    @cached_property
    def _without(self) -> Mapping[str, TableSizes]:
        """The sizes of each table for which none are given."""
        row_wise = TableSizes()
        return {
            name: row_wise if table.shards is None else AS_TORCHREC
            for name, table in self.tables.items()
        }

    def _make(self, every: Mapping[str, TableSizes]) -> Ledger:
        """The ledger of these sizes; each table is priced once with its shards."""
        left = tuple(name for name, size in every.items() if size.as_torchrec)
        placed = self._placed.get(left)
        if placed is None:
            placed = self._placed[left] = self._shards_of(left)
        tables = {}
        shares = travelling_shares(self.tables, every)
        before, self._latest = self._latest, {}
        for name, size in every.items():
            shards = placed.get(name, self.tables[name].shards)
            share = shares.get(name)
            known = before.get(name)
            # Most tables of two successive ledgers are alike, and looking up a price takes hashes.
            if known and known[0] is size and known[1] is shards and known[2] == share:
                priced = known[3]
            else:
                priced = self._price(name, size, shards, share)
            self._latest[name] = size, shards, share, priced
            tables[name] = priced
        return Ledger(prices=self.prices, tables=tables)

    def _price(
        self, name: str, size: TableSizes, shards: PlannedShards | None, share: float | None
    ) -> TableLedger:
        key = name, size, id(shards), share
        priced = self._priced.get(key)
        if priced is None:
            table = dataclasses.replace(self.tables[name], shards=shards)
            priced = self._priced[key] = TableLedger.of(table, size, self.prices, share)
        return priced

    def _shards_of(self, left: tuple[str, ...]) -> Mapping[str, PlannedShards | None]:
        """The shards that TorchRec will have of the tables left to it: those of its own plan, if
        all tables are left; otherwise new ones, each on the rank with the least so far, the largest
        first."""
        found: dict[str, PlannedShards | None] = {name: self.tables[name].shards for name in left}
        if len(left) == len(self.tables):
            return found
        busy = [0.0] * self.prices.cluster.world_size
        for name in sorted(left, key=lambda name: -self._sent[name]):
            shards = found[name]
            if shards is None or shards.kind not in WHOLE:
                continue
            ranks = []
            for _ in shards.shards:
                rank = busy.index(min(busy))
                busy[rank] += self._sent[name] / len(shards.shards)
                ranks.append(rank)
            found[name] = self._on(name, shards, tuple(ranks))
        return found

    @cached_property
    def _sent(self) -> Mapping[str, float]:
        """Bytes of each table in all-to-alls over all ranks, wherever TorchRec has its shards."""
        return {
            name: 0.0
            if table.shards is None
            else float(np.sum(sharded_cost(self.prices, table, table.shards).a2a_global))
            for name, table in self.tables.items()
        }

    def _on(self, name: str, shards: PlannedShards, ranks: tuple[int, ...]) -> PlannedShards:
        """A table's shards on these ranks."""
        if (name, ranks) not in self._moved:
            placed = zip(shards.shards, ranks, strict=True)
            self._moved[name, ranks] = dataclasses.replace(
                shards, shards=tuple(dataclasses.replace(one, rank=rank) for one, rank in placed)
            )
        return self._moved[name, ranks]
