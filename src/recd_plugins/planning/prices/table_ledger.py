"""The ledger of one table: the rows and the costs of each of its tiers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from recd_plugins.planning.prices.bag_cost import SUM_BYTES, row_wise_bags, travelling
from recd_plugins.planning.prices.cost import Cost, Prices
from recd_plugins.planning.prices.row_wise_cost import home_load, row_wise_cost, touched_by_rank
from recd_plugins.planning.prices.sharded_cost import sharded_cost
from recd_plugins.planning.remembered import remembered
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.tier_plans.tier_plan import Coalesce

__all__ = ["REPLICAS", "Entry", "TableLedger", "TierName", "home_cost", "travelling_shares"]

TierName = Literal["replicated", "per_node", "home"]
REPLICAS: tuple[TierName, ...] = ("replicated", "per_node")
TINY = 1e-300
"""Divides instead of 0, where nothing is looked up."""
POOLED: Mapping[str, int] = {"none": 13, "rank": 9, "node": 16}
"""Tensor operations of each pooled table beside those that tables share (`OPERATIONS` of `ledger`),
by how its ids are coalesced."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The rows and the costs of one tier of one table."""

    rows: int
    share: float
    """The share of the table's lookups."""
    cost: Cost
    touched: float = 0.0
    """Rows with replicas for which some rank has a gradient in a step."""


NONE = Entry(rows=0, share=0.0, cost=Cost())
"""The entry of a tier that has no rows."""
NO_REPLICAS: Mapping[TierName, Entry] = {"replicated": NONE, "per_node": NONE}


@dataclass(frozen=True, kw_only=True)
class TableLedger:
    """The cost of one table, tier by tier."""

    table: ProfiledTable
    sizes: TableSizes
    entries: Mapping[TierName, Entry]

    @classmethod
    def of(
        cls, table: ProfiledTable, sizes: TableSizes, prices: Prices, share: float | None = None
    ) -> TableLedger:
        """`share` is the share of its bags whose sums travel, where there are sums; by default that
        of the bags which have a row without a replica."""
        # Planners price the same sizes for different searches and reports.
        asked = TableLedger, table, sizes, prices, share
        return remembered(asked, lambda: cls._priced(table, sizes, prices, share))

    @classmethod
    def _priced(
        cls, table: ProfiledTable, sizes: TableSizes, prices: Prices, share: float | None
    ) -> TableLedger:
        if sizes.as_torchrec and table.shards is not None:
            cost = sharded_cost(prices, table, table.shards)
            whole = Entry(rows=table.rows.num_rows, share=1.0, cost=cost)
            entries: Mapping[TierName, Entry] = {**NO_REPLICAS, "home": whole}
        else:
            entries = _entries(prices, table, sizes, share)
        return cls(table=table, sizes=sizes, entries=entries)

    def interval(self, tier: TierName) -> tuple[float, float]:
        """The interval in which the share of lookups that a tier takes will lie."""
        rows, sizes, share = self.table.rows, self.sizes, self.entries[tier].share
        if sizes.as_torchrec:
            return share, share
        ends = _ends(sizes, rows.num_rows)[tier]
        wide = np.hypot(*(np.ptp(rows.interval(end)) / 2 for end in ends)).item()
        return max(share - wide, 0.0), min(share + wide, 1.0)

    @cached_property
    def cost(self) -> Cost:
        return self.replica_cost + self.entries["home"].cost

    @cached_property
    def replica_cost(self) -> Cost:
        """The cost of its replicas."""
        every = (self.entries[tier] for tier in REPLICAS)
        costs = [one.cost for one in every if one is not NONE]
        return costs[0] if len(costs) == 1 else Cost.of_all(costs)

    @cached_property
    def has_replicas(self) -> bool:
        """Whether any of its rows has a replica."""
        return self.sizes.replicas > 0

    @property
    def is_torchrecs(self) -> bool:
        """Whether neither a tier nor coalescing stands in front of it."""
        sizes = self.sizes
        plain = sizes.coalesce == "none" and not self.has_replicas
        return sizes.as_torchrec or plain

    @property
    def travels(self) -> bool:
        """Whether it has bags whose rows travel, and are summed where they were asked for."""
        return not self.sizes.as_torchrec and _rows_travel(self.table, self.sizes)

    @property
    def home_kind(self) -> str:
        """How its rows at home are exchanged: TorchRec's sharding type, or `rows` one by one."""
        if self.sizes.as_torchrec and self.table.shards is not None:
            kind = self.table.shards.kind
            return kind if self.table.bags or kind == "data_parallel" else "rows"
        return "row_wise" if self.table.bags and self.sizes.coalesce == "none" else "rows"

    @cached_property
    def exchange(self) -> tuple[str, str, str, int]:
        """The exchange with home that it shares with other tables, by: how its rows at home travel;
        TorchRec's sharding type, each of which has exchanges of its own; its collection; and its
        dimension, where rows travel and are summed then."""
        own = self.table.shards if self.sizes.as_torchrec else None
        kind = own.kind if own else "row_wise"
        return self.home_kind, kind, self.table.collection, self.table.dim if self.travels else 0

    @property
    def alike(self) -> tuple[str, int, Coalesce]:
        """What tables that share calls and operations of replicas have in common: those of one
        collection are updated together, those of one width and way of coalescing at once."""
        return self.table.collection, self.table.width, self.sizes.coalesce

    @cached_property
    def operations(self) -> tuple[frozenset[tuple[str, str, int, Coalesce]], int]:
        """The parts of `OPERATIONS` that it has, which tables that are `alike` share; and the
        operations that are its own."""
        sizes = self.sizes
        has = {"replicated": sizes.replicated, "per_node": sizes.per_node, sizes.coalesce: 1}
        own = POOLED[sizes.coalesce] if self.table.bags and not self.is_torchrecs else 0
        return frozenset((part, *self.alike) for part, there in has.items() if there), own


def travelling_shares(
    tables: Mapping[str, ProfiledTable], sizes: Mapping[str, TableSizes]
) -> dict[str, float]:
    """For each table, the share of its bags whose sums travel, where replicas stand in front of
    sums.

    The sums of a collection's tables travel in one tensor, with as many bags of each table as of
    the one with the most; a table without replicas has all its bags in it.
    """
    summed = [name for name, one in tables.items() if one.bags and sizes[name].coalesce == "none"]
    taken = {name: sizes[name].replicas for name in summed}
    fronted = {tables[name].collection for name, rows in taken.items() if rows}
    found: dict[str, float] = {}
    for collection in fronted:
        names = [name for name in summed if tables[name].collection == collection]
        each = [
            travelling(tables[name].rows, bags, taken[name])
            if taken[name] and (bags := tables[name].bags)
            else 1.0
            for name in names
        ]
        found |= dict.fromkeys(names, max(each))
    return found


def home_cost(prices: Prices, table: ProfiledTable, sizes: TableSizes, share: float | None) -> Cost:
    """The cost of the rows of a table that have no replica; `share` is as in `TableLedger.of`. Rows
    in mapped files take no static_memory, and are paged."""
    cost = _home_in_memory(prices, table, sizes, share)
    if not table.mapped:
        return cost
    return dataclasses.replace(
        cost, static_memory=0.0, paged=touched_by_rank(prices, table, first=sizes.replicas)
    )


def _entries(
    prices: Prices, table: ProfiledTable, sizes: TableSizes, share: float | None
) -> dict[TierName, Entry]:
    """The entry of each tier of a row-wise table; `share` is as in `TableLedger.of`."""
    rows, width = table.rows, table.width
    pooled = int(_rows_travel(table, sizes))
    ends = _ends(sizes, rows.num_rows)
    every_rank = prices.batch_size * prices.cluster.world_size

    def entry(tier: TierName, cost: Cost, samples: int = 0) -> Entry:
        kept = rows.within(*ends[tier])
        share = float(kept @ rows.p) / max(rows.lookups, TINY)
        touched = float(kept @ rows.appear(samples)) if samples else 0.0
        return Entry(rows=int(kept.sum()), share=share, cost=cost, touched=touched)

    found = dict(NO_REPLICAS)
    if sizes.replicated:
        part = rows.part(*ends["replicated"])
        cost = prices.replicated(part, width, pooled).total(part.counts)
        found["replicated"] = entry("replicated", cost, every_rank)
    if sizes.per_node:
        part = rows.part(*ends["per_node"])
        cost = prices.per_node(part, width, sizes.coalesce, pooled).total(part.counts)
        found["per_node"] = entry("per_node", cost, every_rank)
    found["home"] = entry("home", home_cost(prices, table, sizes, share))
    return found


def _ends(sizes: TableSizes, num_rows: int) -> dict[TierName, tuple[int, int]]:
    """The first row of each tier, and the one after its last, counted from the hottest on."""
    return {
        "replicated": (0, sizes.replicated),
        "per_node": (sizes.replicated, sizes.replicas),
        "home": (sizes.replicas, num_rows),
    }


def _rows_travel(table: ProfiledTable, sizes: TableSizes) -> bool:
    """Whether the rows of a row-wise table of bags travel, rather than their sums."""
    return bool(table.bags) and sizes.coalesce != "none"


def _home_in_memory(
    prices: Prices, table: ProfiledTable, sizes: TableSizes, share: float | None
) -> Cost:
    """`home_cost` of a table that is not in mapped files."""
    first, coalesce = sizes.replicas, sizes.coalesce
    if not table.bags:
        return row_wise_cost(prices, table, first=first, coalesce=coalesce)
    if coalesce != "none":
        cost = row_wise_cost(prices, table, first=first, coalesce=coalesce, pooled=1)
        return cost + _summed(prices, table)
    rows = table.rows.part(first, table.rows.num_rows)
    if share is None:
        share = travelling(table.rows, table.bags, first) if first else 1.0
    return row_wise_bags(
        prices,
        rows,
        bags=table.bags,
        dim=table.dim,
        width=table.width,
        share=share,
        load=home_load(prices, table, first=first),
    )


def _summed(prices: Prices, table: ProfiledTable) -> Cost:
    """The cost of the sums on the rank that asked for their rows: 2 f B s, and as much local."""
    size = 2 * table.bags * prices.batch_size * table.dim * SUM_BYTES
    return Cost(dynamic_memory=size, local=size)
