"""The `sharding: flexshard` planner: profile, choose, and hand the rest to TorchRec's planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from recd_flexshard.config import BUDGETED, FlexShardConfig
from recd_flexshard.policy.goals import choose, frontier
from recd_plugins.api import Context, Topology, fitting
from recd_plugins.api.planning import (
    GB,
    PAPER_K,
    ChosenSizes,
    Cluster,
    Coalesce,
    Frontier,
    ModelTable,
    PlanReport,
    SequenceTable,
    TierPlanner,
    check_collections,
    model_tables,
    priced,
    replica_factor,
)

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FlexShardPlanner", "build_flexshard"]


class FlexShardPlanner(TierPlanner):
    """Two or three tiers in front of tables, by expected time and memory."""

    name = "flexshard"
    slot = "sharding"
    kind = "table of sequences"

    def __init__(self, config: FlexShardConfig, context: Context) -> None:
        super().__init__(
            context,
            profile=config.profile,
            profile_batches=config.profile_batches,
            plan=config.plan,
        )
        self._config = config

    def tables(self, model: nn.Module) -> Mapping[str, ModelTable]:
        """The tables of sequences, and where ids are coalesced the pooled tables that are named;
        all tables where a saved plan says which.

        Otherwise rows of an EmbeddingBagCollection are summed before they travel, so that a
        replica spares no traffic unless all of a bag's rows have one.
        """
        coalesced, chosen = self._level != "none", self._config.tables
        pooled = coalesced or self._config.plan is not None
        found = model_tables(model, chosen, pooled=pooled, where="sharding.tables")
        if self._config.plan is not None:
            return found
        named = [pattern for pattern in chosen if pattern != "*"]
        return {
            name: table for name, table in found.items() if not table.pooled or fitting(name, named)
        }

    def choose(
        self,
        model: nn.Module,
        tables: Mapping[str, SequenceTable],
        topology: Topology,
        world_size: int,
    ) -> ChosenSizes:
        config = self._config
        if self._level != "none":
            check_collections(model_tables(model), tables, slot=self.slot)
        usual = PAPER_K if config.prices == "paper" else None
        prices = priced(
            config.prices,
            cluster=Cluster.of(topology, world_size),
            batch_size=self.context.batch_size,
            k=config.k or usual or replica_factor(tables.values(), self.context.fused),
        )
        ledger = choose(
            tables,
            prices,
            goal=config.goal,
            tiers=config.tiers,
            budget=(config.budget_gb or 0.0) * GB,
            coalesce=self._level,
        )
        sizes = {name: one.sizes for name, one in ledger.tables.items()}
        curve = frontier(
            tables,
            prices,
            tiers=config.tiers,
            coalesce={name: one.coalesce for name, one in sizes.items()},
        )
        report = PlanReport(
            ledger=ledger,
            goal=config.goal,
            budget=self._budget(),
            frontier=Frontier(memory=curve.memory, ms=curve.ms),
        )
        return ChosenSizes(sizes=sizes, report=report, reason="\n".join(report.lines()))

    @property
    def _level(self) -> Coalesce:
        """How ids travel, where that is given."""
        return self._config.coalesce or "none"

    def _budget(self) -> float | None:
        """Extra bytes that the goal allows; none where it does not ask."""
        if self._config.goal == "memory_neutral":
            return 0.0
        return (self._config.budget_gb or 0.0) * GB if self._config.goal in BUDGETED else None


def build_flexshard(config: FlexShardConfig, context: Context) -> FlexShardPlanner:
    return FlexShardPlanner(config, context)
