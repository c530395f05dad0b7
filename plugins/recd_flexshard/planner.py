"""The `sharding: flexshard` planner: profile, choose, and hand the rest to TorchRec's planner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from recd_flexshard.policy.goals import Goal, choose, frontier
from recd_flexshard.tables import ModelTable, sequence_tables
from recd_plugins.config import Config, Range
from recd_plugins.errors import CapabilityError, RecdError
from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.cost import Prices
from recd_plugins.planning.explain import Frontier, PlanReport
from recd_plugins.planning.ledger import SequenceTable, TableSizes, tier_plan
from recd_plugins.planning.plan import TorchRecPlanner, TorchRecPlannerConfig
from recd_plugins.planning.profile import Profile, profile_batches
from recd_plugins.planning.tier_plan import Coalesce, TierPlan
from recd_plugins.planning.topology import GB, Topology
from recd_plugins.slots import Context

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.data.batch import Batch
    from recd_plugins.tiers.sharder import TierCluster

__all__ = ["FlexShardConfig", "FlexShardPlanner", "build_flexshard"]

UNDER_WAY = 0.6
"""Of the bytes of replicas, what gradients take while chunks of them are reduced; measured."""
STATE_BYTES: Mapping[str, Callable[[int], int]] = {
    "EXACT_ADAGRAD": lambda dim: 4 * dim,
    "EXACT_ROWWISE_ADAGRAD": lambda _: 4,
}
"""Optimizer state of a row of D elements; none for SGD."""


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
    its optimizer state, and 0.6 for gradients under way. The paper's framework had 6.25."""
    tables: tuple[str, ...] = ("*",)
    """Names or globs of the tables that may have replicas; others are left to TorchRec."""
    profile: Path | None = None
    """A saved profile to plan with; by default the train split's first batches are counted."""
    profile_batches: Annotated[int, Range(ge=1)] = 100
    """How many batches to count."""
    others: TorchRecPlannerConfig = field(default_factory=TorchRecPlannerConfig)
    """TorchRec's planner, for the tables that are left to it: those that its constraints do not
    let be row-wise among them."""


class FlexShardPlanner:
    """Makes a tier plan and, for the canonical tables, an ordinary TorchRec plan."""

    def __init__(self, config: FlexShardConfig, context: Context) -> None:
        self._config = config
        self._context = context
        self.tier_plan: TierPlan | None = None
        """The last plan's replicas; none before, and where every table was left to TorchRec."""
        self.profile: Profile | None = None
        """What it was made from."""
        self.report: PlanReport | None = None
        """Why it is what it is; on rank 0."""
        self._found: Mapping[str, ModelTable] = {}
        self._cluster: TierCluster | None = None
        self._explanation = "No plan has been made yet."

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        """Rank 0's proposal, on every rank; or its error."""
        from torchrec.distributed.collective_utils import invoke_on_rank_and_broadcast_result

        Proposal = tuple["ShardingPlan", TierPlan | None]

        def proposal() -> Proposal | RecdError:
            try:
                return self.propose(model, topology, group.size()), self.tier_plan
            except RecdError as error:
                return error

        found: Proposal | RecdError
        found = invoke_on_rank_and_broadcast_result(group, 0, proposal)
        if isinstance(found, RecdError):
            raise found
        plan, self.tier_plan = found
        self._cluster = None
        if group.rank() != 0:
            self._explanation = "Planned on rank 0, which knows why."
        return plan

    def propose(self, model: nn.Module, topology: Topology, world_size: int) -> ShardingPlan:
        """The plan for a number of ranks, which need not be there."""
        found = self._found = {
            name: table
            for name, table in sequence_tables(model, self._config.tables).items()
            if self._may_be_row_wise(name)
        }
        said = "flexshard: the model has no table of sequences: all is left to TorchRec's planner."
        self.tier_plan = self.report = self._cluster = None
        if found and (self._config.profile or self._context.batches):
            self._tier(found, Cluster.of(topology, world_size))
            said = "\n".join(self.report.lines()) if self.report else said
        elif found:
            said = (
                "flexshard: there are no batches to profile, so every table is left to TorchRec's "
                "planner. Name a saved profile under sharding.profile."
            )
        others = self._others()
        plan = others.propose(model, topology, world_size)
        self._explanation = f"{said}\n{others.explain()}"
        return plan

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """TorchRec's; for collections of sequences those of the plan's tiers, where it has any."""
        others = self._others().sharders()
        if self.tier_plan is None:
            return others
        from torchrec.modules.embedding_modules import EmbeddingCollection

        from recd_plugins.tiers.sharder import TierCluster, TierEmbeddingCollectionSharder

        self._cluster = self._cluster or TierCluster(self.tier_plan)
        tiered = TierEmbeddingCollectionSharder(self._cluster, self._context.fused)
        return [tiered if one.module_type is EmbeddingCollection else one for one in others]

    def retier(self, batches: Iterable[Batch], group: ProcessGroup) -> None:
        """Give the replicas to the rows that are hot in these batches, of rank 0; sizes stay.

        Every rank calls it between the same batches; rows move once the next one is computed.
        """
        from torchrec.distributed.collective_utils import invoke_on_rank_and_broadcast_result

        if self.tier_plan is None or self._cluster is None:
            return

        def hotter() -> TierPlan | RecdError:
            try:
                return self._hotter(batches)
            except RecdError as error:
                return error

        found: TierPlan | RecdError = invoke_on_rank_and_broadcast_result(group, 0, hotter)
        if isinstance(found, RecdError):
            raise found
        self._cluster.retier(found)
        self.tier_plan = found

    def explain(self) -> str:
        return self._explanation

    def _hotter(self, batches: Iterable[Batch]) -> TierPlan:
        """The last plan with other rows."""
        assert self.tier_plan is not None  # `retier` asked
        plans = self.tier_plan.tables
        self.profile = profile_batches(batches, {name: self._found[name].counted for name in plans})
        rows = {
            name: self.profile[name].hottest(len(plan.replicated) + len(plan.per_node))
            for name, plan in plans.items()
        }
        tables = {
            name: dataclasses.replace(
                plan,
                replicated=rows[name][: len(plan.replicated)].copy(),
                per_node=rows[name][len(plan.replicated) :].copy(),
            )
            for name, plan in plans.items()
        }
        return dataclasses.replace(self.tier_plan, tables=tables)

    def _may_be_row_wise(self, table: str) -> bool:
        """Whether `others.constraints` leave a table to tiers, which need it row-wise and fused."""
        said = self._config.others.constraints
        fits = [said[pattern] for pattern in said if fnmatchcase(table, pattern)]
        if not fits:
            return True
        kinds, kernels = fits[-1].sharding_types, fits[-1].compute_kernels
        return "row_wise" in (kinds or ("row_wise",)) and "fused" in (kernels or ("fused",))

    def _tier(self, found: Mapping[str, ModelTable], cluster: Cluster) -> None:
        """Profile, choose sizes, and make row ids of them."""
        config = self._config
        self.profile = self._profiled(found)
        tables = {
            name: SequenceTable(
                name=name,
                rows=self.profile[name],
                dim=table.dim,
                element_bytes=table.element_bytes,
            )
            for name, table in found.items()
        }
        prices = Prices(
            cluster=cluster, batch_size=self._context.batch_size, k=self._k(tables.values())
        )
        ledger = choose(
            tables,
            prices,
            goal=config.goal,
            tiers=config.tiers,
            budget=config.budget_gb * GB,
            coalesce=config.coalesce,
        )
        sizes = {
            name: one.sizes for name, one in ledger.tables.items() if one.sizes != TableSizes()
        }
        self.tier_plan = tier_plan(tables, sizes, cluster) if sizes else None
        curve = frontier(
            tables,
            prices,
            tiers=config.tiers,
            coalesce={name: one.sizes.coalesce for name, one in ledger.tables.items()},
        )
        self.report = PlanReport(
            ledger=ledger,
            goal=config.goal,
            budget=self._budget(),
            frontier=Frontier(memory=curve.memory, ms=curve.ms),
        )

    def _k(self, tables: Iterable[SequenceTable]) -> float:
        """That of the table whose replicas take the most."""
        if self._config.k is not None:
            return self._config.k
        optimizer: str = getattr(self._context.fused.get("optimizer"), "name", "EXACT_SGD")
        state = STATE_BYTES.get(optimizer, lambda _: 0)
        states: list[float] = [state(table.dim) / table.width for table in tables]
        return 1 + UNDER_WAY + max(states)

    def _budget(self) -> float | None:
        """Extra bytes that the goal allows; none where it does not ask."""
        budgets = {"memory_neutral": 0.0, "budget": self._config.budget_gb * GB}
        return {**budgets, "auto": self._config.budget_gb * GB}.get(self._config.goal)

    def _profiled(self, found: Mapping[str, ModelTable]) -> Profile:
        if self._config.profile is None:
            assert self._context.batches is not None  # `propose` asked
            batches = islice(self._context.batches(), self._config.profile_batches)
            return profile_batches(batches, {name: table.counted for name, table in found.items()})
        profile = Profile.load(self._config.profile)
        for name, table in found.items():
            if profile[name].num_rows != table.num_rows:
                raise CapabilityError(
                    f"sharding.profile: {self._config.profile} was made of a table {name!r} of "
                    f"{profile[name].num_rows:,} rows, but the model's has {table.num_rows:,}. "
                    "Profile again: take `profile` out of registry.yaml."
                )
        return profile

    def _others(self) -> TorchRecPlanner:
        """TorchRec's planner, for which tables with tiers or coalescing are row-wise."""
        row_wise = TableConstraint(sharding_types=("row_wise",), compute_kernels=("fused",))
        tiered = self.tier_plan.tables if self.tier_plan else ()
        constraints = {**self._config.others.constraints, **dict.fromkeys(tiered, row_wise)}
        return TorchRecPlanner(
            dataclasses.replace(self._config.others, constraints=constraints),
            device=self._context.device,
            batch_size=self._context.batch_size,
            fused=self._context.fused,
        )


def build_flexshard(config: FlexShardConfig, context: Context) -> FlexShardPlanner:
    return FlexShardPlanner(config, context)
