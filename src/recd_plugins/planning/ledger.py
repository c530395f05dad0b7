"""What a choice costs: the prices of every tier of every table, added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.bag_cost import row_wise_bags, travelling
from recd_plugins.planning.cost import COLLECTIVES, Cost, Lane, Prices, milliseconds, overlapped
from recd_plugins.planning.table_sizes import SequenceTable, TableSizes

__all__ = [
    "Entry",
    "Ledger",
    "TableLedger",
    "TierName",
    "home_cost",
]

TierName = Literal["replicated", "per_node", "home"]
REPLICAS: tuple[TierName, ...] = ("replicated", "per_node")
TINY = 1e-300
"""Instead of 0, where nothing is looked up and so nothing is a share of it."""
OPERATIONS: Mapping[str, int] = {
    "replicated": 180,
    "per_node": 110,
    "none": 0,
    "rank": 15,
    "node": 75,
}
"""Tensor operations of our tiers, as a profile counts them in a step whose update is one chunk."""
ROUTING = 50
"""Tensor operations of a collection with any of these, to route ids and to merge rows."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one tier of one table holds and costs."""

    rows: int
    share: float
    """The share of the table's lookups."""
    cost: Cost


@dataclass(frozen=True, kw_only=True)
class TableLedger:
    """What one table costs, tier by tier."""

    table: SequenceTable
    sizes: TableSizes
    entries: Mapping[TierName, Entry]

    @cached_property
    def cost(self) -> Cost:
        return sum((entry.cost for entry in self.entries.values()), Cost())


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What all tables cost, each by its sizes."""

    prices: Prices
    tables: Mapping[str, TableLedger]

    @classmethod
    def of(
        cls,
        tables: Mapping[str, SequenceTable],
        sizes: Mapping[str, TableSizes],
        prices: Prices,
    ) -> Ledger:
        """A table without sizes is plain row-wise."""
        plain = TableSizes()
        return cls(
            prices=prices,
            tables={
                name: _table(table, sizes.get(name, plain), prices)
                for name, table in tables.items()
            },
        )

    @cached_property
    def cost(self) -> Cost:
        return sum((table.cost for table in self.tables.values()), Cost())

    @cached_property
    def calls(self) -> dict[str, int]:
        """How often a step calls each collective: `home_calls` and `replica_calls`."""
        return {name: self.home_calls[name] + self.replica_calls[name] for name in COLLECTIVES}

    @cached_property
    def home_calls(self) -> dict[str, int]:
        """Calls for the tables at home: splits, ids, rows, gradients. Node coalescing adds the
        way to concentrators, once for tables of one width, and still makes TorchRec's calls over
        all ranks: their latency is a2a_global's, only their bytes are a2a_cross's. Parts of sums
        are all-reduced."""
        by_node = {
            one.table.width
            for one in self.tables.values()
            if one.sizes.coalesce == "node" and one.entries["home"].rows
        }
        summed = [_is_summed(one.table, one.sizes) for one in self.tables.values()]
        calls = {
            "a2a_global": 2 if summed and all(summed) else 4,
            "a2a_intra": 4 * len(by_node),
            "ar_global": int(any(summed)),
        }
        return dict.fromkeys(COLLECTIVES, 0) | calls

    @cached_property
    def replica_calls(self) -> dict[str, int]:
        """Tables of one width and way of coalescing share calls. DP: 4 within the node, for
        which rows are touched, reduce and gather; 2 across. Flex: 1 within the node, gradients to
        owners, for its lookups ride with the exchange with home; 2 across. A dense DP reduce is
        one all-reduce.
        """
        dense = self.prices.reduce == "dense"
        calls = dict.fromkeys(COLLECTIVES, 0)
        tiers = {
            (tier, one.table.width, one.sizes.coalesce)
            for one in self.tables.values()
            for tier, entry in one.entries.items()
            if entry.rows and tier != "home"
        }
        for tier, _, _ in tiers:
            if dense and tier == "replicated":
                calls["ar_global"] += 1
                continue
            calls["a2a_intra"] += 1 if tier == "per_node" else 4
            calls["ar_cross"] += 1 if dense else 2
        return calls

    @cached_property
    def operations(self) -> int:
        """Tensor operations of a step beside TorchRec's own, whatever their size: `OPERATIONS` of
        each tier and way of coalescing, which tables of one width and way share."""
        parts = set()
        for one in self.tables.values():
            sizes, alike = one.sizes, (one.table.width, one.sizes.coalesce)
            has = {"replicated": sizes.replicated, "per_node": sizes.per_node, sizes.coalesce: 1}
            parts |= {(part, *alike) for part, there in has.items() if there}
        operations = sum(OPERATIONS[part] for part, _, _ in parts)
        return operations + ROUTING if operations else 0

    @cached_property
    def ms_by_collective(self) -> dict[str, float]:
        """Expected time of a step by collective, and of the rank's own work."""
        return milliseconds(self.cost, self.prices.cluster, self.calls, self.operations)

    @property
    def ms(self) -> float:
        """Expected milliseconds of a step's exchange and lookups."""
        cluster, entries = self.prices.cluster, [one.entries for one in self.tables.values()]
        home = sum((each["home"].cost for each in entries), Cost())
        copied = (each[tier].cost for each in entries for tier in REPLICAS)
        return overlapped(
            self.ms_by_collective,
            cluster,
            Lane.of(home, cluster, self.home_calls),
            Lane.of(sum(copied, Cost()), cluster, self.replica_calls),
        )


def home_cost(
    table: SequenceTable, sizes: TableSizes, rows: RowDistribution, prices: Prices
) -> Cost:
    """What the rows of a table cost that have no replica."""
    if not table.bags or sizes.coalesce != "none":
        return prices.row_wise(rows, table.width, sizes.coalesce).total(rows.counts)
    whole = not sizes.replicated and not sizes.per_node
    return row_wise_bags(
        prices,
        rows,
        bags=table.bags,
        dim=table.dim,
        width=table.width,
        share=1.0 if whole else travelling(rows, table.bags),
    )


def _is_summed(table: SequenceTable, sizes: TableSizes) -> bool:
    """Whether each rank sums its part of every bag."""
    return bool(table.bags) and sizes.coalesce == "none"


def _table(table: SequenceTable, sizes: TableSizes, prices: Prices) -> TableLedger:
    rows, width = table.rows, table.width
    hot, warm, every = sizes.replicated, sizes.replicated + sizes.per_node, rows.num_rows
    replicated, per_node = rows.part(0, hot), rows.part(hot, warm)
    home = rows.part(warm, every)
    parts: dict[TierName, tuple[RowDistribution, Cost]] = {
        "replicated": (
            replicated,
            prices.replicated(replicated, width).total(replicated.counts),
        ),
        "per_node": (
            per_node,
            prices.per_node(per_node, width, sizes.coalesce).total(per_node.counts),
        ),
        "home": (home, home_cost(table, sizes, home, prices)),
    }
    entries = {
        tier: Entry(
            rows=part.num_rows,
            share=part.lookups / max(rows.lookups, TINY),
            cost=cost,
        )
        for tier, (part, cost) in parts.items()
    }
    return TableLedger(table=table, sizes=sizes, entries=entries)
