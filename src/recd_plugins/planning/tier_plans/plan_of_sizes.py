"""The tier plan of chosen sizes: which rows the numbers of rows come to be."""

from __future__ import annotations

from collections.abc import Mapping

from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.tier_plans.tier_plan import HottestRows, TablePlan, TierPlan

__all__ = ["tier_plan"]


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
