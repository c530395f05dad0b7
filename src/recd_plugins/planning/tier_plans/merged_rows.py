"""The rows of all tables in one order, the hottest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recd_plugins.planning.access.distribution import Integers, RowDistribution
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.tier_plans.tier_plan import Coalesce

__all__ = ["MergedRows"]


@dataclass(frozen=True, kw_only=True, eq=False)
class MergedRows:
    """R bands of rows of T tables; a table's bands keep their order among the others."""

    names: tuple[str, ...]
    """[T]."""
    rows: RowDistribution
    table: Integers
    """[R] which table each band is of."""
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
        """[T] rows, where each band gives `taken` [R]."""
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
