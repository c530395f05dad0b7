"""How many rows of each table each tier takes, and the rows of all tables in one order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np

from recd_plugins.errors import DataError, nearest, shown
from recd_plugins.planning.access.distribution import Integers, RowDistribution
from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.planned_shards import PlannedShards
from recd_plugins.planning.tier_plan import Coalesce, HottestRows, TablePlan, TierPlan

__all__ = ["AS_TORCHREC", "MergedRows", "ProfiledTable", "TableSizes", "tier_plan"]


@dataclass(frozen=True, kw_only=True)
class ProfiledTable:
    """A table with its access distribution, of which prices are computed: its rows are
    looked up one by one, or pooled in bags."""

    name: str
    rows: RowDistribution
    dim: int
    element_bytes: int = 4
    bags: float = 0
    """f: bags of a sample, where rows are pooled; fewer than its features where bags of unique
    samples are looked up. 0 where rows are looked up one by one."""
    collection: str = ""
    """The path of its collection in the model."""
    shards: PlannedShards | None = None
    """Its table shards in TorchRec's own plan; row-wise where nobody asked."""
    mapped: bool = False
    """Whether its rows at home lie in mapped files, which take no memory of a rank."""

    @property
    def width(self) -> int:
        """r: bytes of a row."""
        return self.dim * self.element_bytes


@dataclass(frozen=True, kw_only=True)
class TableSizes:
    """The number of a table's rows that each tier takes, in the order of popularity; the rest
    stays at home."""

    replicated: int = 0
    """The hottest: a copy on every rank."""
    per_node: int = 0
    """The next: a copy in every node."""
    coalesce: Coalesce = "none"
    as_torchrec: bool = False
    """Whether the table is left where TorchRec's own plan has it, without any sizes."""

    def __post_init__(self) -> None:
        for tier in ("replicated", "per_node"):
            rows = getattr(self, tier)
            if not isinstance(rows, int | np.integer) or rows < 0:
                raise DataError(
                    f"TableSizes: `{tier}` is a number of rows, an integer >= 0, but is {rows!r}."
                )
        if self.coalesce not in get_args(Coalesce):
            raise DataError(
                f"TableSizes: there is no `coalesce` {shown(self.coalesce)}; "
                f"{nearest(str(self.coalesce), get_args(Coalesce))}"
            )


AS_TORCHREC = TableSizes(as_torchrec=True)
"""The sizes of a table that is left to TorchRec."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MergedRows:
    """R runs of rows of T tables; a table's runs keep their order among the others."""

    names: tuple[str, ...]
    """[T]."""
    rows: RowDistribution
    table: Integers
    """[R] which table each run is of."""
    width: Integers
    """[R] bytes of a row."""
    pooled: Integers
    """[R] 1 where rows are summed over bags, else 0."""
    mapped: Integers
    """[R] 1 where rows at home lie in mapped files, else 0."""

    @classmethod
    def of(cls, tables: Mapping[str, ProfiledTable]) -> MergedRows:
        each = list(tables.values())
        p = np.concatenate([table.rows.p for table in each])
        order = np.argsort(-p, kind="stable")
        table = np.repeat(np.arange(len(each)), [len(one.rows.counts) for one in each])[order]
        return cls(
            names=tuple(tables),
            rows=RowDistribution(
                counts=np.concatenate([one.rows.counts for one in each])[order],
                p=p[order],
                presence=np.concatenate([one.rows.presence for one in each])[order],
            ),
            table=table,
            width=np.array([one.width for one in each], np.int64)[table],
            pooled=np.array([one.bags > 0 for one in each], np.int64)[table],
            mapped=np.array([one.mapped for one in each], np.int64)[table],
        )

    def per_table(self, taken: Integers) -> Integers:
        """[T] rows, where each run gives `taken` [R]."""
        rows = np.bincount(self.table, weights=taken, minlength=len(self.names))
        found: Integers = np.rint(rows).astype(np.int64)
        return found

    def sizes(
        self, replicated: Integers, per_node: Integers, coalesce: Mapping[str, Coalesce]
    ) -> dict[str, TableSizes]:
        """The sizes of all tables, from rows per table [T] in either tier."""
        return {
            name: TableSizes(replicated=hot, per_node=warm, coalesce=coalesce.get(name, "none"))
            for name, hot, warm in zip(
                self.names, replicated.tolist(), per_node.tolist(), strict=True
            )
        }


def tier_plan(
    tables: Mapping[str, ProfiledTable],
    sizes: Mapping[str, TableSizes],
    cluster: Cluster,
    hottest_rows: HottestRows | None = None,
) -> TierPlan:
    """The tier plan of these sizes, with the row ids of `hottest_rows`; by default those of the
    distributions, which must know them."""
    plans = {
        name: TablePlan.hottest(
            name,
            tables[name].rows,
            replicated=size.replicated,
            per_node=size.per_node,
            coalesce=size.coalesce,
            hottest_rows=hottest_rows,
        )
        for name, size in sizes.items()
        if not size.as_torchrec
    }
    return TierPlan(tables=plans, n_nodes=cluster.n_nodes, ranks_per_node=cluster.ranks_per_node)
