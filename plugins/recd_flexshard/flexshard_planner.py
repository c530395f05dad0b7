"""The `sharding: flexshard` planner: which tables may have replicas, and by which policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from recd_flexshard.config import BUDGETED, FlexShardConfig
from recd_flexshard.policy.considered_plans import considered_plans
from recd_flexshard.policy.goals import choose, frontier
from recd_flexshard.policy.search import PlanSearch
from recd_plugins.api import Context, Notice, Topology, Unused, fitting
from recd_plugins.api.planning import (
    AS_TORCHREC,
    GB,
    PAPER_K,
    ChosenSizes,
    Cluster,
    Coalesce,
    Considered,
    Ledger,
    ModelTable,
    PlanReport,
    Prices,
    ProfiledTable,
    TableSizes,
    TierPlanner,
    model_tables,
    remembered,
)

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FlexShardPlanner", "build_flexshard"]

MOST_NAMED = 6
"""Tables that a notice tells to name; of more it names a pattern for all."""


class FlexShardPlanner(TierPlanner):
    """Two or three tiers in front of tables, by expected time and memory."""

    name = "flexshard"
    slot = "sharding"

    def __init__(self, config: FlexShardConfig, context: Context) -> None:
        super().__init__(
            context,
            profile=config.profile,
            profile_batches=config.profile_batches,
            plan=config.plan,
        )
        self._config = config

    @property
    def chooses_homes(self) -> bool:
        return self._config.goal == "auto" and self._config.plan is None

    def tables(self, model: nn.Module) -> Mapping[str, ModelTable]:
        """All tables, where the goal is auto or a saved plan names them. Otherwise those of
        sequences, and where ids are coalesced the pooled tables that are named.

        Rows of an EmbeddingBagCollection that are not coalesced are summed before they travel, so a
        replica saves no traffic unless all rows of a bag have one.
        """
        coalesced, chosen = self._coalesce != "none", self._config.tables
        every = self._config.goal == "auto" or self._config.plan is not None
        found = model_tables(model, chosen, pooled=coalesced or every, where="sharding.tables")
        if every:
            return found
        named = [pattern for pattern in chosen if pattern != "*"]
        return {
            name: table for name, table in found.items() if not table.pooled or fitting(name, named)
        }

    def no_tables(self, every: Mapping[str, ModelTable]) -> Unused:
        """Pooled tables must be named."""
        names = ", ".join(every) if len(every) <= MOST_NAMED else '"?*"'
        return Unused(
            what="sharding: flexshard",
            why="the model has no table of sequences; of its pooled tables TorchRec sends one sum "
            "for each bag, so that a replica of one row saves nothing",
            cure="Set `goal: auto`, which plans pooled tables too; or let their rows travel: "
            f"`coalesce: rank, tables: [{names}]`.",
        )

    def choose(
        self,
        model: nn.Module,
        tables: Mapping[str, ProfiledTable],
        topology: Topology,
        world_size: int,
    ) -> ChosenSizes:
        config = self._config
        usual = PAPER_K if config.prices == "paper" else None
        cluster = Cluster.of(topology, world_size)
        prices = self.prices(tables, cluster, pricing=config.prices, k=config.k or usual)
        if config.goal == "auto":
            # `recd advise` asks again for registries that differ in other things.
            asked = (FlexShardPlanner, *tables.items(), prices, config.budget_gb, config.tiers)
            return remembered(asked, lambda: self._searched(tables, prices))
        ledger = choose(
            tables,
            prices,
            goal=config.goal,
            tiers=config.tiers,
            budget=(config.budget_gb or 0.0) * GB,
            coalesce=self._coalesce,
        )
        # Tables for which no size was found are TorchRec's.
        sized = {name: one.sizes for name, one in ledger.tables.items()}
        left = {name: AS_TORCHREC for name, size in sized.items() if size == TableSizes()}
        return self._chosen(Ledger.of(tables, sized | left, prices), tables)

    def _searched(self, tables: Mapping[str, ProfiledTable], prices: Prices) -> ChosenSizes:
        """The best of all ways of all tables."""
        config = self._config
        budget = (config.budget_gb or 0.0) * GB
        search = PlanSearch(tables, prices, budget=budget, tiers=config.tiers)
        return self._chosen(search.run(), tables, considered_plans(search), search.own)

    def _chosen(
        self,
        ledger: Ledger,
        tables: Mapping[str, ProfiledTable],
        considered: Mapping[str, Sequence[Considered]] | None = None,
        own: Ledger | None = None,
    ) -> ChosenSizes:
        """The sizes of a ledger, with the report on them."""
        config, prices = self._config, ledger.prices
        sizes = {name: one.sizes for name, one in ledger.tables.items()}
        report = PlanReport(
            ledger=ledger,
            goal=config.goal,
            budget=self._budget(),
            frontier=frontier(tables, prices, tiers=config.tiers, plan=sizes),
            considered=considered or {},
            own=own,
        )
        forced = config.goal != "auto"
        reason = "\n".join(report.lines())
        return ChosenSizes(sizes=sizes, report=report, reason=reason, forced=forced)

    def notices(self) -> Sequence[Notice]:
        return [*super().notices(), *self._idle_tiers()]

    def _idle_tiers(self) -> list[Unused]:
        """The notice of `tiers: 2` where the third tier would be no other."""
        if self._config.tiers != 2 or self.report is None:
            return []
        cluster = self.report.ledger.prices.cluster
        if cluster.n_nodes > 1 and cluster.ranks_per_node > 1:
            return []
        where = "one node" if cluster.n_nodes == 1 else "nodes of one rank"
        return [
            Unused(
                what="sharding: tiers",
                why="`tiers: 2` leaves out copies per node, and there are none on " + where,
                cure="Take tiers out, or train on several nodes of several ranks.",
            )
        ]

    @property
    def _coalesce(self) -> Coalesce:
        """The way in which ids travel, by the option; "none" by default."""
        return self._config.coalesce or "none"

    def _budget(self) -> float | None:
        """Extra bytes that the goal allows; None where it does not count memory."""
        if self._config.goal == "memory_neutral":
            return 0.0
        return (self._config.budget_gb or 0.0) * GB if self._config.goal in BUDGETED else None


def build_flexshard(config: FlexShardConfig, context: Context) -> FlexShardPlanner:
    return FlexShardPlanner(config, context)
