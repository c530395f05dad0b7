"""What runs on a rank of the emulated cluster, so that forecasts are held to reality: a model of a
history and an item, its steps timed, and what it computes beside its tables."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.cluster.network import bytes_sent
from benchmarks.flexshard.steps import OnNodes
from recd_plugins.advise.computed import measured_compute
from recd_plugins.compat.both_ways import show_messages
from recd_plugins.data.batch import Batch
from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.bags_of_one import with_bags_of_one
from recd_plugins.embedding.sharded import with_dedup
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.access.parametric import uniform, zipf
from recd_plugins.planning.step.compute import Compute
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.tier_plan import Rows, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.tiers.sharder import tier_sharders

__all__ = ["HISTORY", "EmulatedJob", "EmulatedSteps", "computed", "steps_of"]

CPU = torch.device("cpu")
HISTORY, ITEM = "history", "item"
WARM_UP, HELD = 2, 4
PROFILED = 3
"""Steps after those that are timed, of which a profiler tells the collectives."""
FUSED = OptimizerSettings(tables="rowwise_adagrad")


@dataclass(frozen=True, kw_only=True)
class EmulatedJob:
    """A table of histories, pooled by TorchRec or by a module, one of items, and an MLP."""

    exponent: float
    """Of Zipf's law; 0 where all rows are alike."""
    samples_per_session: int
    pooled: bool
    batch_size: int
    lookups: int = 40
    num_rows: int = 100_000
    dim: int = 64
    width: int = 256

    @property
    def rows(self) -> RowDistribution:
        """Hottest first, drawn by samples that each have a history of their own."""
        if not self.exponent:
            return uniform(self.num_rows, self.lookups)
        return zipf(self.num_rows, self.lookups, self.exponent)

    @property
    def ids(self) -> Tensor:
        """[num_rows] the id of each row of the distribution: hot ids lie anywhere."""
        return torch.randperm(self.num_rows, generator=torch.Generator().manual_seed(1))

    def hottest(self, name: str, rows: RowDistribution, count: int) -> Rows:
        """The ids of so many rows of the table."""
        return self.ids[:count].numpy()

    @property
    def share(self) -> float:
        """Unique samples of histories."""
        return len(range(0, self.batch_size, self.samples_per_session)) / self.batch_size

    def tables(self) -> dict[str, ProfiledTable]:
        """As a ledger takes them: of unique samples, where they are fewer."""
        rows = self.rows.deduplicated(1 / self.share)
        history = ProfiledTable(
            name=HISTORY,
            rows=rows,
            dim=self.dim,
            bags=self.share if self.pooled else 0,
            collection="bags" if self.pooled else "sequences",
        )
        item = ProfiledTable(
            name=ITEM, rows=uniform(self.num_rows, 1), dim=self.dim, bags=1, collection="bags"
        )
        return {HISTORY: history, ITEM: item}

    def batch(self, draw: np.random.Generator, *, dedup: bool) -> Batch:
        rows, size = self.rows, round(self.share * self.batch_size) * self.lookups
        chance = rows.counts * rows.p
        starts = np.concatenate([[0], np.cumsum(rows.counts)])[:-1]
        run = draw.choice(len(chance), size, p=chance / chance.sum())
        hit = starts[run] + (draw.random(size) * rows.counts[run]).astype(np.int64)
        unique = self.ids[torch.from_numpy(hit)].view(-1, self.lookups)
        every = unique.repeat_interleave(self.samples_per_session, 0)[: self.batch_size]
        items = torch.from_numpy(draw.integers(0, self.num_rows, self.batch_size))
        lengths = torch.full((self.batch_size,), self.lookups, dtype=torch.int32)
        ones = torch.ones(self.batch_size, dtype=torch.int32)
        history = KeyedJaggedTensor(keys=[HISTORY], values=every.flatten(), lengths=lengths)
        item = KeyedJaggedTensor(keys=[ITEM], values=items, lengths=ones)
        made = Batch(
            dense=torch.zeros(self.batch_size, 1),
            features=KeyedJaggedTensor.concat([history, item]),
            labels=torch.zeros(self.batch_size),
            weights=torch.ones(self.batch_size),
        )
        if not dedup:
            return made
        return replace(made, features=item, dedup=InverseKeyedJaggedTensor.from_kjt(history))


class Summed(nn.Module):
    """The sum of each history's embeddings."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return torch.segment_reduce(values, "sum", lengths=lengths.long(), initial=0.0)


class EmulatedModel(nn.Module):
    """Both features as vectors, and an MLP over them."""

    def __init__(self, job: EmulatedJob) -> None:
        super().__init__()
        meta = torch.device("meta")
        size = {"embedding_dim": job.dim, "num_embeddings": job.num_rows}
        bags = [EmbeddingBagConfig(name=ITEM, feature_names=[ITEM], **size)]
        self.sequences = None
        if job.pooled:
            bags.append(EmbeddingBagConfig(name=HISTORY, feature_names=[HISTORY], **size))
        else:
            rows = EmbeddingConfig(name=HISTORY, feature_names=[HISTORY], **size)
            self.sequences = EmbeddingCollection(tables=[rows], device=meta)
        self.bags = EmbeddingBagCollection(tables=bags, device=meta)
        self.pooling = Summed()
        self.top = nn.Sequential(
            nn.Linear(2 * job.dim, job.width),
            nn.ReLU(),
            nn.Linear(job.width, job.width),
            nn.ReLU(),
            nn.Linear(job.width, 1),
        )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        summed = self.bags(batch.features).to_dict()
        if self.sequences is None:
            history = summed[HISTORY]
        else:
            rows = self.sequences(batch.features)[HISTORY]
            history = self.pooling(rows.values(), rows.lengths())
        loss = self.top(torch.cat([history, summed[ITEM]], dim=1)).square().mean()
        return loss, loss.detach()


def computed(job: EmulatedJob, fewest: int) -> Compute:
    """What the model computes beside its tables, all ranks at once: by a batch, and by one of the
    `fewest` samples."""
    draw = np.random.default_rng(dist.get_rank())
    small = replace(job, batch_size=fewest)
    return measured_compute(
        EmulatedModel(job),
        [one.batch(draw, dedup=False) for one in (small, job)],
        lambda batch: batch.features,
        device=CPU,
        group=dist.group.WORLD,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


@dataclass(frozen=True, kw_only=True)
class EmulatedSteps:
    """The steps of one rank."""

    seconds: list[float]
    """The time of each step, from barrier to barrier."""
    node_bytes: float
    """What left this rank's node in the middle step."""
    processor: float
    """Seconds of the middle step that this rank's processor worked."""
    collectives: Mapping[str, float]
    """Seconds of a step from the call of a collective to its end, by gloo's name: of all its calls,
    which run beside each other, and wait for the slowest rank."""


def steps_of(job: EmulatedJob, tiers: TierPlan | None, rounds: int) -> EmulatedSteps:
    """Steps on held batches."""
    draw = np.random.default_rng(100 + dist.get_rank())
    dedup = job.samples_per_session > 1
    pipeline = _pipeline(job, tiers, dedup)
    stream = cycle([job.batch(draw, dedup=dedup) for _ in range(HELD)])
    seconds, sent, worked = [], [], []
    for number in range(WARM_UP + rounds):
        gc.collect()
        before = bytes_sent()  # before the barrier, behind which others begin
        dist.barrier()
        begun, work = time.perf_counter(), time.process_time()
        pipeline.progress(stream)
        work = time.process_time() - work
        dist.barrier()
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - begun)
            sent.append(bytes_sent() - before)
            worked.append(work)
    return EmulatedSteps(
        seconds=seconds,
        node_bytes=statistics.median(sent),
        processor=statistics.median(worked),
        collectives=_collectives(pipeline, stream),
    )


def _collectives(pipeline: Any, stream: Iterator[Batch]) -> dict[str, float]:
    seen = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with seen as profiler, show_messages():
        for _ in range(PROFILED):
            dist.barrier()
            pipeline.progress(stream)
    found: dict[str, float] = {}
    for event in profiler.events():
        name = event.name.removeprefix("gloo:")
        if name != event.name and name != "barrier":
            took = event.time_range.elapsed_us() * 1e-6 / PROFILED
            found[name] = found.get(name, 0.0) + took
    return found


def _pipeline(job: EmulatedJob, tiers: TierPlan | None, dedup: bool) -> Any:
    torch.manual_seed(0)
    model: nn.Module = EmulatedModel(job)
    bags = EmbeddingBagCollectionSharder(fused_params=FUSED.fused_params())
    rows = EmbeddingCollectionSharder(fused_params=FUSED.fused_params())
    sharders: list[Any] = [bags, rows]
    tables = {"bags": [ITEM, HISTORY] if job.pooled else [ITEM]}
    if not job.pooled:
        tables["sequences"] = [HISTORY]
    plan = {
        path: construct_module_sharding_plan(
            model.get_submodule(path),
            {name: row_wise(compute_kernel="fused") for name in names},
            sharder=bags if path == "bags" else rows,
            device_type="cpu",
        )
        for path, names in tables.items()
    }
    if tiers is not None:
        sharders = list(tier_sharders(OnNodes(tiers), sharders))
    if dedup:
        model = adapt(model, ((HISTORY,),), unique_shares=[job.share])
        sharders = with_dedup(sharders)
    sharded = DistributedModelParallel(
        model, device=CPU, plan=ShardingPlan(plan=plan), sharders=with_bags_of_one(sharders)
    )
    dense = [one for name, one in sharded.named_parameters() if "top." in name]
    return TrainPipelineSparseDist(sharded, torch.optim.SGD(dense, lr=0.01), CPU)


def median(seconds: Sequence[float]) -> float:
    """Milliseconds of the middle step."""
    return 1000 * statistics.median(seconds)
