"""What runs on a rank: sides take turns, step by step, on held batches."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingPlan

from benchmarks.cluster.network import bytes_sent
from benchmarks.flexshard.steps import OnNodes
from benchmarks.recd_train.memory import give_back
from benchmarks.trainers.pooled_model import PooledModel
from recd_plugins.embedding.bags_of_one import with_bags_of_one
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.tiers.sharder import tier_sharders
from recd_plugins.trainer.measure.traffic import TrafficCounter

__all__ = ["FUSED", "Side", "SideSteps", "take_turns"]

CPU = torch.device("cpu")
WARM_UP = 2
SCREENED, FAR, MOST = 3, 1.5, 4
"""Steps of a side alone, and how many times the fastest's best one its own may take: a side that is
slower drops out. Of the others so many stay, the fastest, beside those that are judged: the tables
of a side are up to 0.9 GB a rank."""
FUSED = OptimizerSettings(tables="rowwise_adagrad")


@dataclass(frozen=True)
class Side:
    """One plan for the model."""

    name: str
    plan: ShardingPlan
    tiers: TierPlan | None
    expected_ms: float
    """By the prices: exchanges and lookups of a step."""
    memory: float = 0.0
    """Bytes a rank over TorchRec's own plan, by the ledger."""


@dataclass(frozen=True)
class SideSteps:
    """The steps of one side, on one rank."""

    seconds: list[float]
    """The time of each step, from barrier to barrier."""
    node_bytes: list[int]
    """What left this rank's node meanwhile."""
    collectives: float
    """Bytes that this rank handed to all collectives but the dense all-reduce, in a step."""
    again: list[float]
    """The times of the further rounds; empty where it did not take part in them."""


def take_turns(
    model: PooledModel, sides: Sequence[Side], rounds: int, judged: Sequence[str]
) -> dict[str, SideSteps]:
    """One step of every side a round, order reversed each round, same batches for all; then as many
    further rounds of the last that is judged and of the one that was the fastest.

    Before the rounds the sides are made one by one, the judged ones first, then the largest, and
    those that are far behind give up their tables at once: all sides' together are gigabytes. The
    further rounds are there because of many sides the fastest was lucky too.
    """
    # A pipeline looks two batches ahead.
    batches = model.batches(WARM_UP + SCREENED + 2 * rounds + 3, seed=1000 + dist.get_rank())
    streams = {side.name: iter(batches) for side in sides}
    steps = {side.name: SideSteps([], [], 0.0, []) for side in sides}
    pipelines: dict[str, Any] = {}

    def drop(name: str) -> None:
        counted = _collectives(pipelines.pop(name), streams[name])
        steps[name] = dataclasses.replace(steps[name], collectives=counted)
        gc.collect()  # a pipeline and its modules hold each other
        give_back()

    screened: dict[str, float] = {}
    for side in sorted(sides, key=lambda side: (side.name not in judged, -side.memory)):
        pipelines[side.name] = _pipeline(model, side)
        first = [_step(pipelines[side.name], streams[side.name]) for _ in range(WARM_UP + SCREENED)]
        screened[side.name] = min(seconds for seconds, _ in first[WARM_UP:])
        near = _near(list(pipelines), screened, judged)
        for name in screened.keys() & pipelines.keys() - set(near):
            steps[name].seconds.append(screened[name])
            drop(name)
    names = list(pipelines)
    for _ in range(rounds):
        for name in names:
            seconds, sent = _step(pipelines[name], streams[name])
            steps[name].seconds.append(seconds)
            steps[name].node_bytes.append(sent)
        names.reverse()
    names = list(pipelines)
    medians = [statistics.median(steps[name].seconds) for name in names]
    fastest = torch.tensor(medians.index(min(medians)))
    dist.broadcast(fastest, src=0)
    finalists = list(dict.fromkeys([names[int(fastest)], judged[-1]]))
    for name in names:
        if name not in finalists:
            drop(name)
    for _ in range(rounds if len(finalists) > 1 else 0):
        for name in finalists:
            steps[name].again.append(_step(pipelines[name], streams[name])[0])
        finalists.reverse()
    for name in finalists:
        drop(name)
    return steps


def _near(names: list[str], seconds: dict[str, float], judged: Sequence[str]) -> list[str]:
    """The sides that may well be the fastest, and the judged ones, as rank 0 finds."""
    limit = FAR * min(seconds.values())
    others = sorted((name for name in names if name not in judged), key=seconds.__getitem__)
    stay = {*judged, *(name for name in others[:MOST] if seconds[name] <= limit)}
    near = torch.tensor([name in stay for name in names])
    dist.broadcast(near, src=0)
    return [name for name, kept in zip(names, near.tolist(), strict=True) if kept]


def _step(pipeline: Any, batches: Iterator[Any]) -> tuple[float, int]:
    gc.collect()
    sent = bytes_sent()  # before the barrier, behind which others begin
    dist.barrier()
    start = time.perf_counter()
    pipeline.progress(batches)
    dist.barrier()
    return time.perf_counter() - start, bytes_sent() - sent


def _collectives(pipeline: Any, batches: Iterator[Any]) -> float:
    """Bytes of a step that this rank handed over, as `recd train` counts them, without those of
    the dense parameters' gradients."""
    dense: int = sum(
        each.numel() for group in pipeline._optimizer.param_groups for each in group["params"]
    )
    counter = TrafficCounter()
    with counter:
        pipeline.progress(batches)
    every = sum(size for phases in counter.traffic.values() for size in phases.values())
    return float(every) - 4 * dense


def _pipeline(model: PooledModel, side: Side) -> Any:
    fused = FUSED.fused_params()
    torch.manual_seed(0)
    sharders: Any = [EmbeddingBagCollectionSharder(fused_params=fused)]
    if side.tiers is not None:
        sharders = tier_sharders(OnNodes(side.tiers), sharders)
    sharded = DistributedModelParallel(
        model.make(), device=CPU, plan=side.plan, sharders=with_bags_of_one(sharders)
    )
    optimizer = torch.optim.SGD(
        [one for name, one in sharded.named_parameters() if "embedding_bags" not in name], lr=0.1
    )
    return TrainPipelineSparseDist(sharded, optimizer, CPU)
