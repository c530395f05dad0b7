"""What is compared: one table's rows in tiers of given sizes, or plain TorchRec."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.flexshard.workload import TABLE, Workload
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan

__all__ = ["COALESCED", "ROW_WISE", "Side", "tables"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """Some of the hottest rows on every rank, some more in every node, and the rest at home."""

    name: str
    sizes: TableSizes = field(default_factory=TableSizes)
    """The sizes of its tiers; by default plain TorchRec."""

    def plan(self, workload: Workload, cluster: Cluster) -> TierPlan | None:
        if self.sizes == TableSizes():
            return None
        ids, hot = workload.ids.numpy(), self.sizes.replicated
        table = TablePlan(
            table=TABLE,
            replicated=ids[:hot],
            per_node=ids[hot : hot + self.sizes.per_node],
            coalesce=self.sizes.coalesce,
        )
        return TierPlan(
            tables={TABLE: table},
            n_nodes=cluster.n_nodes,
            ranks_per_node=cluster.ranks_per_node,
        )

    def ledger(self, workload: Workload, prices: Prices) -> Ledger:
        return Ledger.of(tables(workload), {TABLE: self.sizes}, prices)


def tables(workload: Workload) -> dict[str, ProfiledTable]:
    return {TABLE: ProfiledTable(name=TABLE, rows=workload.rows, dim=workload.dim)}


ROW_WISE = Side(name="row-wise")
COALESCED = Side(name="coalesced per rank", sizes=TableSizes(coalesce="rank"))
