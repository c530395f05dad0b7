"""What runs on a rank of the emulated cluster: sides take turns, step by step, on batches in
memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ModuleSharder, ShardingEnv, ShardingPlan

from benchmarks.cluster.network import bytes_sent
from benchmarks.flexshard.sides import Side
from benchmarks.flexshard.workload import TABLE, Features, Sequences, Workload
from recd_plugins.compat.both_ways import exchange_both_ways
from recd_plugins.embedding.bags_of_one import with_bags_of_one
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.measured_topology import ROUNDS, measure_topology
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.tiers.peers import Nodes
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders

__all__ = ["FUSED", "QUICK_ROUNDS", "OnNodes", "SideSteps", "take_turns", "topology"]

CPU = torch.device("cpu")
FUSED = OptimizerSettings(tables="rowwise_adagrad").fused_params()
WARM_UP = 2
LARGEST = 1 << 24
"""The most bytes of a payload; a step of these sides exchanges no more at a time."""
QUICK_ROUNDS = 4
"""The rounds in which a quick run times collectives: the usual number would take a minute."""


@dataclass(frozen=True)
class SideSteps:
    """The steps of one side, on one rank."""

    seconds: list[float]
    """The time of each step, from barrier to barrier."""
    cpu: list[float]
    """Seconds that this rank's process computed in each step."""
    node_bytes: list[int]
    """Bytes that left this rank's node in each step."""


def take_turns(
    workload: Workload, sides: Sequence[Side], cluster: Cluster, rounds: int
) -> dict[str, SideSteps]:
    """One step of every side per round, in reverse order in every other round, with the same
    batches for all."""
    pipelines = {side.name: _pipeline(workload, side, cluster) for side in sides}
    # A pipeline looks two batches ahead.
    batches = workload.batches(WARM_UP + rounds + 2, seed=dist.get_rank())
    streams = {side.name: iter(batches) for side in sides}
    steps = {side.name: SideSteps([], [], []) for side in sides}
    names = [side.name for side in sides]
    for number in range(WARM_UP + rounds):
        for name in names:
            seconds, cpu, sent = _step(pipelines[name], streams[name])
            if number >= WARM_UP:
                steps[name].seconds.append(seconds)
                steps[name].cpu.append(cpu)
                steps[name].node_bytes.append(sent)
        names.reverse()
    return steps


def topology(ranks_per_node: int, rounds: int = ROUNDS) -> Topology:
    """The measured collectives of this cluster, as from `recd topology measure`. From then on, all
    sides exchange in the way that was faster."""
    world = dist.group.WORLD
    assert world is not None
    known = Topology(ranks_per_node=ranks_per_node)
    found = measure_topology(world, CPU, topology=known, largest=LARGEST, rounds=rounds)
    exchange_both_ways(world, bool(found.both_ways))
    return found


def _step(pipeline: Any, batches: Iterator[Features]) -> tuple[float, float, int]:
    gc.collect()
    sent = bytes_sent()  # before the barrier, after which others begin
    dist.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    pipeline.progress(batches)
    cpu = time.process_time() - cpu
    dist.barrier()
    return time.perf_counter() - start, cpu, bytes_sent() - sent


def _pipeline(workload: Workload, side: Side, cluster: Cluster) -> Any:
    torch.manual_seed(0)
    model = Sequences(workload)
    plan = side.plan(workload, cluster)
    sharders: list[ModuleSharder[nn.Module]] = [EmbeddingCollectionSharder(fused_params=FUSED)]
    if plan is not None:
        sharders = tier_sharders(OnNodes(plan), sharders)
    placed = construct_module_sharding_plan(
        model.sequences,
        {TABLE: row_wise(compute_kernel="fused")},
        sharder=sharders[-1],
        device_type="cpu",
    )
    sharded = DistributedModelParallel(
        model,
        device=CPU,
        plan=ShardingPlan(plan={"sequences": placed}),
        sharders=with_bags_of_one(sharders),
    )
    return TrainPipelineSparseDist(sharded, sharded.fused_optimizer, CPU)


class OnNodes(ShardedTiers):
    """All sides share process groups: making them anew takes seconds."""

    made: ClassVar[dict[int, Nodes]] = {}

    def nodes(self, env: ShardingEnv) -> Nodes:
        ranks_per_node = self.plan.ranks_per_node
        if ranks_per_node not in self.made:
            self.made[ranks_per_node] = super().nodes(env)
        return self.made[ranks_per_node]
