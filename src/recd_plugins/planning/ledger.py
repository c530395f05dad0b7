"""What a choice costs: the prices of every tier of every table, added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from recd_plugins.errors import DataError
from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.cost import Cost, Prices
from recd_plugins.planning.rows import RowDistribution
from recd_plugins.planning.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.planning.topology import GB

__all__ = [
    "Entry",
    "Ledger",
    "SequenceTable",
    "TableLedger",
    "TableSizes",
    "TierName",
    "marginal_ms",
    "milliseconds",
    "tier_plan",
]

TierName = Literal["replicated", "per_node", "row_wise"]
BESIDE = ("a2a_intra", "ar_cross")
"""The exchanges that other links carry than the global all-to-all's."""
TINY = 1e-300
"""Instead of 0, where nothing is looked up and so nothing is a share of it."""
CALLS = {"a2a_global": 3, "a2a_intra": 3, "ar_global": 1, "ar_cross": 1}
"""How often a step calls each collective: ids, embeddings and gradients; or gradients alone."""


@dataclass(frozen=True, kw_only=True)
class SequenceTable:
    """A table whose rows cross the network one by one, and how they are accessed."""

    name: str
    rows: RowDistribution
    dim: int
    element_bytes: int = 4

    @property
    def width(self) -> int:
        """r: bytes of a row."""
        return self.dim * self.element_bytes


@dataclass(frozen=True, kw_only=True)
class TableSizes:
    """How many of a table's rows each tier takes, in the order of popularity; the rest is RW."""

    replicated: int = 0
    """The hottest: a copy on every rank (DP)."""
    per_node: int = 0
    """The next: a copy in every node (Flex)."""
    coalesce: Coalesce = "none"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tier of one table."""

    tier: TierName
    rows: int
    share: float
    """Of the table's lookups."""
    cost: Cost


@dataclass(frozen=True, kw_only=True)
class TableLedger:
    """One table."""

    table: SequenceTable
    sizes: TableSizes
    entries: Mapping[TierName, Entry]

    @cached_property
    def cost(self) -> Cost:
        return sum((entry.cost for entry in self.entries.values()), Cost())


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All tables, each by its sizes."""

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

    @property
    def ms(self) -> float:
        """Expected milliseconds of a step's exchange and lookups.

        One after the other, but for the share of a2a_intra and ar_cross that runs beside
        a2a_global: overlap * min(a2a_global, a2a_intra + ar_cross).
        """
        cluster = self.prices.cluster
        each = milliseconds(self.cost, cluster)
        beside = min(each["a2a_global"], sum(each[name] for name in BESIDE))
        return sum(each.values()) - cluster.overlap * beside


def milliseconds(cost: Cost, cluster: Cluster) -> dict[str, float]:
    """What each collective takes, latency included where it is called at all; and the rank's
    own work: `local` at the rate of random rows, `coalesced` ids at theirs."""
    found = {}
    for name, calls in CALLS.items():
        payload, link = getattr(cost, name), getattr(cluster, name)
        found[name] = (calls - 1) * link.latency_ms + link.ms(payload) if payload else 0.0
    found["local"] = cluster.local_ms(cost.local, cost.coalesced)
    return found


def marginal_ms(cost: Cost, cluster: Cluster) -> Any:
    """Milliseconds of each row by its bytes alone: what one row more or less changes, as long
    as what may run beside the global all-to-all is shorter."""
    total = cluster.local_ms(cost.local, cost.coalesced)
    for name in CALLS:
        share = 1 - cluster.overlap if name in BESIDE else 1.0
        total = total + getattr(cost, name) * (share * 1000 / (getattr(cluster, name).gbps * GB))
    return total


def tier_plan(
    tables: Mapping[str, SequenceTable], sizes: Mapping[str, TableSizes], cluster: Cluster
) -> TierPlan:
    """Sizes as row ids, which the distributions must know."""
    plans = {}
    for name, size in sizes.items():
        table = tables[name]
        if size.replicated + size.per_node > table.rows.num_rows:
            raise DataError(
                f"tier plan: table {name!r} has {table.rows.num_rows:,} rows, fewer than the "
                f"{size.replicated + size.per_node:,} of its tiers."
            )
        hottest = table.rows.hottest(size.replicated + size.per_node)
        plans[name] = TablePlan(
            table=name,
            replicated=hottest[: size.replicated].copy(),
            per_node=hottest[size.replicated :].copy(),
            coalesce=size.coalesce,
        )
    return TierPlan(tables=plans, n_nodes=cluster.n_nodes, ranks_per_node=cluster.ranks_per_node)


def _table(table: SequenceTable, sizes: TableSizes, prices: Prices) -> TableLedger:
    rows, width = table.rows, table.width
    hot, warm, every = sizes.replicated, sizes.replicated + sizes.per_node, rows.num_rows
    replicated, per_node = rows.part(0, hot), rows.part(hot, warm)
    row_wise = rows.part(warm, every)
    costs: dict[TierName, tuple[RowDistribution, Cost]] = {
        "replicated": (replicated, prices.replicated(replicated, width)),
        "per_node": (per_node, prices.per_node(per_node, width, sizes.coalesce)),
        "row_wise": (row_wise, prices.row_wise(row_wise, width, sizes.coalesce)),
    }
    entries = {
        tier: Entry(
            tier=tier,
            rows=part.num_rows,
            share=part.lookups / max(rows.lookups, TINY),
            cost=price.of(part.counts),
        )
        for tier, (part, price) in costs.items()
    }
    return TableLedger(table=table, sizes=sizes, entries=entries)
