"""On a rank of the emulated cluster: the steps of a side, and their losses."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from benchmarks.cluster.network import bytes_sent
from benchmarks.scars.clicks import Clicks, Held, Model
from recd_plugins.data.batch import Batch
from recd_plugins.embedding.bags_of_one import with_bags_of_one
from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers
from recd_scars.hot_batches import HotBatches

__all__ = ["ScarsSide", "Steps", "trained"]

CPU = torch.device("cpu")
WINDOW = 8
TABLES_LR = 0.01
"""The rate, among those from 0.005 to 1, at which batches of 1,024 and 4,096 samples learn
soonest."""


@dataclass(frozen=True, kw_only=True)
class ScarsSide:
    """How tables are kept; by default plain TorchRec, row-wise."""

    name: str
    coalesce: Coalesce = "none"
    cached: float = 0.0
    """The share of lookups taken by rows that all ranks have."""
    hot_batches: bool = False
    kind: Literal["row_wise", "table_wise"] = "row_wise"
    """How TorchRec shards the rest."""

    @property
    def plain(self) -> bool:
        """Whether the side is plain TorchRec."""
        return self.coalesce == "none" and not self.cached

    def plan(self, clicks: Clicks) -> TierPlan:
        rows = clicks.hottest(self.cached)
        plans = [
            TablePlan(table=name, replicated=rows, coalesce=self.coalesce) for name in clicks.names
        ]
        return TierPlan(
            tables={plan.table: plan for plan in plans},
            n_nodes=dist.get_world_size(),
            ranks_per_node=1,
        )


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What each step took, and whether its batch was hot."""

    seconds: list[float]
    """The time of each step, from barrier to barrier."""
    sent: list[int]
    """Bytes that left this rank's node."""
    losses: list[float]
    """What is left to learn, as the mean over the ranks."""
    hot: list[bool]


@dataclass(frozen=True)
class _PlannedSteps:
    """What the stage of hot batches needs of a plan."""

    tier_plan: TierPlan
    features_of: Mapping[str, tuple[str, ...]]
    group: None = None


def trained(clicks: Clicks, side: ScarsSide, batch_size: int, steps: int) -> Steps:
    """Train `steps` steps with batches of `batch_size` per rank; all sides have the same
    samples."""
    torch.manual_seed(0)
    optimizer = OptimizerSettings(tables="rowwise_adagrad", tables_lr=TABLES_LR)
    model = Model(clicks)
    initialisers = table_initialisers(model)
    arranged = BySharding(side.kind)(model, optimizer)
    plan = side.plan(clicks)
    sharders = arranged.sharders
    if not side.plain:
        sharders = tier_sharders(ShardedTiers(plan), sharders)
    sharded = DistributedModelParallel(
        arranged.model, device=CPU, plan=arranged.plan, sharders=with_bags_of_one(sharders)
    )
    initialise_tables(sharded, initialisers, 0)
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(sharded.named_parameters())),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    )
    pipeline = TrainPipelineSparseDist(
        sharded, CombinedOptimizer([sharded.fused_optimizer, dense]), CPU
    )
    rank, world_size = dist.get_rank(), dist.get_world_size()
    held: Any = Held(clicks.batches(steps, batch_size, rank))
    if side.hot_batches:
        features = {name: (name,) for name in clicks.names}
        planned = _PlannedSteps(plan, features)
        held = HotBatches(held, planned, rank=rank, world_size=world_size, window=WINDOW)
    found = Steps(seconds=[], sent=[], losses=[], hot=[])
    losses = []
    batches = _noted(iter(held), found.hot)
    for _ in range(steps):
        gc.collect()
        sent = bytes_sent()
        dist.barrier()
        began = time.perf_counter()
        losses.append(pipeline.progress(batches).double())
        dist.barrier()
        found.seconds.append(time.perf_counter() - began)
        found.sent.append(bytes_sent() - sent)
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    return dataclasses.replace(found, losses=(mean / world_size).tolist())


def _noted(batches: Iterator[Batch], hot: list[bool]) -> Iterator[Batch]:
    for batch in batches:
        hot.append(batch.hot)
        yield batch
