"""The `sharding: flexshard` planner: profile, choose, and hand the rest to TorchRec's planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from recd_flexshard.policy.goals import Goal, choose, frontier
from recd_plugins.config import Config, Range
from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.cost import Prices
from recd_plugins.planning.explain import Frontier, PlanReport
from recd_plugins.planning.ledger import SequenceTable
from recd_plugins.planning.model_tables import ModelTable, model_tables
from recd_plugins.planning.plan import TorchRecPlannerConfig, build_torchrec_planner
from recd_plugins.planning.replica_memory import replica_factor
from recd_plugins.planning.tier_plan import Coalesce
from recd_plugins.planning.topology import GB, Topology
from recd_plugins.slots import Context
from recd_plugins.tiers.planner import Chosen, TierPlanner

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FlexShardConfig", "FlexShardPlanner", "build_flexshard"]


@dataclass(frozen=True, kw_only=True)
class FlexShardConfig(Config):
    """Options of FlexShard's planner."""

    goal: Goal = "auto"
    """memory_neutral (the paper's), max_memory_saving, min_communication, budget (the least time
    within budget_gb) or auto (that, over coalescing too; never slower than row-wise)."""
    tiers: Literal[2, 3] = 3
    """2: DP and row-wise; 3: Flex between them."""
    budget_gb: float = 0.0
    """Extra memory per rank, GB, for the goals budget and auto; negative: to be saved."""
    coalesce: Coalesce = "none"
    """How ids travel: as they are, once per rank, once per node; the goal auto chooses itself."""
    k: Annotated[float, Range(ge=1)] | None = None
    """Bytes that a replicated row takes with all that goes with it, over its own; by default 1,
    its optimizer state, and 0.64 for gradients under way. The paper's framework had 6.25."""
    tables: tuple[str, ...] = ("*",)
    """Names or globs of the tables that may have replicas; others are left to TorchRec."""
    profile: Path | None = None
    """A saved profile to plan with; by default the train split's first batches are counted."""
    profile_batches: Annotated[int, Range(ge=1)] = 100
    """How many batches to count."""
    others: TorchRecPlannerConfig = field(default_factory=TorchRecPlannerConfig)
    """TorchRec's planner, for the tables that are left to it: those that its constraints do not
    let be row-wise among them."""


class FlexShardPlanner(TierPlanner):
    """Two or three tiers in front of tables of sequences, by expected time and memory."""

    name = "flexshard"
    slot = "sharding"
    kind = "table of sequences"

    def __init__(self, config: FlexShardConfig, context: Context) -> None:
        super().__init__(
            context,
            build_torchrec_planner(config.others, context),
            profile=config.profile,
            profile_batches=config.profile_batches,
        )
        self._config = config

    def tables(self, model: nn.Module) -> Mapping[str, ModelTable]:
        """Those of an EmbeddingCollection.

        Rows of an EmbeddingBagCollection are summed before they travel, so a replica spares no
        traffic unless all of a bag's rows have one.
        """
        return model_tables(model, self._config.tables, pooled=False, where="sharding.tables")

    def choose(
        self,
        model: nn.Module,
        tables: Mapping[str, SequenceTable],
        topology: Topology,
        world_size: int,
    ) -> Chosen:
        config = self._config
        prices = Prices(
            cluster=Cluster.of(topology, world_size),
            batch_size=self._context.batch_size,
            k=config.k or replica_factor(tables.values(), self._context.fused),
        )
        ledger = choose(
            tables,
            prices,
            goal=config.goal,
            tiers=config.tiers,
            budget=config.budget_gb * GB,
            coalesce=config.coalesce,
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
        return Chosen(sizes=sizes, report=report, said="\n".join(report.lines()))

    def _budget(self) -> float | None:
        """Extra bytes that the goal allows; none where it does not ask."""
        budgets = {"memory_neutral": 0.0, "budget": self._config.budget_gb * GB}
        return {**budgets, "auto": self._config.budget_gb * GB}.get(self._config.goal)


def build_flexshard(config: FlexShardConfig, context: Context) -> FlexShardPlanner:
    return FlexShardPlanner(config, context)
