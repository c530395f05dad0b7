"""What runs on a rank: sides take turns, step by step, on batches in memory."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.types import ModuleSharder

from benchmarks.harness import new_garbage_alone
from benchmarks.recd_train.memory import give_back, tensor_memory
from benchmarks.recd_train.workload import TrainSide, TrainWorkload
from recd_plugins.compat.both_ways import exchange_both_ways
from recd_plugins.data.batch import Batch
from recd_plugins.dense_gradients.data_parallel import DenseGradients
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.slots import Loader
from recd_plugins.stack import Stack, load
from recd_plugins.trainer.assemble import assemble
from recd_plugins.trainer.measure.memory import PeakMemory
from recd_plugins.trainer.measure.step_profiler import StepProfiler
from recd_plugins.trainer.measure.traffic import Traffic, TrafficCounter

__all__ = ["WARM_UP", "TrainSteps", "resident_memory", "take_turns"]

CPU = torch.device("cpu")
WARM_UP = 2
PROFILED = 8
"""The most steps of a side that are profiled, if it is profiled; never more than there are
rounds."""


@dataclass(frozen=True, kw_only=True)
class TrainSteps:
    """The steps of one side, on one rank."""

    seconds: list[float]
    """The time of each step, from barrier to barrier."""
    cpu: list[float]
    """Seconds that this rank's process computed in each step."""
    samples: int
    """The samples of a step, on all ranks."""
    loss: float
    """The loss of the last step."""
    ne: float = 0.0
    """This loss divided by the entropy of the labels of its samples."""
    traffic: Traffic
    """Bytes handed to collectives in a step; the mean over the counted steps."""
    ids: float
    """Ids of deduplicated features in the original batches."""
    ids_kept: int
    """Ids of deduplicated features that the batches keep."""
    ids_plain: int = 0
    """Ids of the other features."""
    memory: list[int]
    """The most bytes of tensors at once in a step, for each step whose memory was measured."""
    hot: float = 0.0
    """The share of batches in memory that are hot."""
    sent: float = 0.0
    """Bytes that leave in a step, by the counter given to `take_turns`; 0 without one."""
    dense_once: bool = False
    """Whether dense gradients crossed nodes once."""
    dense_kind: str = "fp32"
    """The precision in which dense gradients were sent."""
    both_ways: bool = False
    """Whether exchanges between nodes sent in both directions at once."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of each part of a step, mean over ranks; empty unless it was profiled."""

    @property
    def dedupe_factor(self) -> float:
        """The dedupe factor; 1 if nothing is deduplicated."""
        return self.ids / self.ids_kept if self.ids_kept else 1.0

    @property
    def deduplicated(self) -> float:
        """The share of all original ids that belong to deduplicated features."""
        return self.ids / (self.ids + self.ids_plain) if self.ids else 0.0

    @property
    def exchanged(self) -> float:
        """Bytes through all-to-alls."""
        return sum(self.traffic["all_to_all"].values())


def take_turns(
    workload: TrainWorkload,
    sides: Mapping[str, TrainSide],
    *,
    rounds: int,
    batches: int,
    warm_up: int = WARM_UP,
    lead_in: int = 0,
    counted: int = 1,
    weighed: int = 0,
    reading: bool = False,
    sent: Callable[[], int] | None = None,
    profiled: Collection[str] = (),
    device: torch.device = CPU,
) -> dict[str, TrainSteps]:
    """A step of each side, again and again, each round the other way about; the first `warm_up`
    rounds do not count.

    Each such step comes behind `lead_in` steps of its side, which do not count: where there are
    many sides, these find the caches full of the others' tables, as no step of a job by itself
    does.

    The batches are held ready, or with `reading` come from the reader, within the step. Then
    follow `counted` steps for the traffic, with what a counter `sent` goes up by, `weighed` for
    the memory, and some of the sides in `profiled` under the profiler.
    """
    trainings = {
        name: _Training(workload, side, None if reading else batches, device)
        for name, side in sides.items()
    }
    names = list(trainings)
    with new_garbage_alone():
        for number in range(warm_up + rounds):
            for name in names:
                for _ in range(lead_in):
                    trainings[name].step(counts=False)
                trainings[name].step(counts=number >= warm_up)
            names.reverse()
    return {
        name: training.finish(
            counted, weighed, sent, profiled=min(PROFILED, rounds) if name in profiled else 0
        )
        for name, training in trainings.items()
    }


def resident_memory(
    workload: TrainWorkload,
    side: TrainSide,
    *,
    steps: int,
    batches: int,
    warm_up: int = WARM_UP,
) -> int:
    """Bytes by which this process grows within steps; for one that has done nothing else."""
    training = _Training(workload, side, batches, CPU)
    for _ in range(warm_up):
        training.step(counts=False)
    give_back()  # what building and warming up left
    memory = PeakMemory(CPU)
    for _ in range(steps):
        training.step(counts=True)
    return memory.above()


class _Training:
    """A side's job and its batches."""

    def __init__(
        self,
        workload: TrainWorkload,
        side: TrainSide,
        batches: int | None,
        device: torch.device,
    ) -> None:
        stack = _SideStack(load(workload.registry(side)).registry)
        stack.side, self._device = side, device
        loader = stack.loader(dist.get_rank(), dist.get_world_size())
        self._samples = stack.registry.train.batch_size * dist.get_world_size()
        self._stack = stack
        # All sides exchange in one group, which goes as the side whose step it is.
        self._both_ways = side.both_ways and bool(stack.registry.topology.both_ways)
        self._job = assemble(stack, device)  # before batches come, which may be ordered by the plan
        self._held: list[Batch] = []
        if batches is None:
            self._batches = _endless(loader)
        else:
            self._held = list(islice(loader, batches))
            self._batches = cycle(self._held)
        self._seconds: list[float] = []
        self._cpu: list[float] = []
        self._loss = torch.zeros(())
        self._labels = torch.zeros(0)

    def step(self, *, counts: bool) -> None:
        gc.collect()
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        self._progress()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        dist.barrier()
        if counts:
            self._seconds.append(time.perf_counter() - wall)
            self._cpu.append(time.process_time() - cpu)

    def finish(
        self,
        counted: int,
        weighed: int,
        sent: Callable[[], int] | None = None,
        *,
        profiled: int = 0,
    ) -> TrainSteps:
        dist.barrier()
        before = sent() if sent is not None else 0
        with TrafficCounter() as counter:
            for _ in range(counted):
                self._progress()
            dist.barrier()
        after = sent() if sent is not None else 0
        traffic = {
            collective: {phase: size / counted for phase, size in phases.items()}
            for collective, phases in counter.traffic.items()
        }
        dedups = [batch.dedup for batch in self._held if batch.dedup is not None]
        kept = [dedup.kjt.values().numel() for dedup in dedups]
        return TrainSteps(
            seconds=self._seconds,
            cpu=self._cpu,
            samples=self._samples,
            loss=self._loss.item(),
            ne=self._loss.item() / _entropy(self._labels),
            traffic=traffic,
            ids=sum(
                dedup.dedupe_factor() * count for dedup, count in zip(dedups, kept, strict=True)
            ),
            ids_kept=sum(kept),
            ids_plain=sum(batch.features.values().numel() for batch in self._held),
            memory=[tensor_memory(self._progress) for _ in range(weighed)],
            hot=sum(batch.hot for batch in self._held) / max(len(self._held), 1),
            sent=(after - before) / max(counted, 1),
            dense_once=self._stack.dense.once,
            dense_kind=self._stack.registry.train.codecs.dense,
            both_ways=self._both_ways,
            parts=self._profiled(profiled) if profiled else {},
        )

    def _profiled(self, steps: int) -> dict[str, float]:
        """All ranks profile the same steps, so many."""
        profiler = StepProfiler(
            self._job.model, self._device, start=0, stop=steps + 4, after=1, steps=steps
        )
        number = 1  # it warms up in this one
        while True:
            with profiler.step(number):
                self._progress()
            if profiler.ends(number):
                return profiler.finish(None)
            number += 1

    def _progress(self) -> None:
        world = dist.group.WORLD
        assert world is not None
        exchange_both_ways(world, self._both_ways)
        self._loss, _, self._labels, _ = self._job.pipeline.progress(self._batches)


class _SideStack(Stack):
    """A stack whose model and sharders are those of a side."""

    side: TrainSide
    dense: DenseGradients

    def data_parallel(self, **options: Any) -> DenseGradients:
        """By default as on one node, where DDP all-reduces over all ranks."""
        one_node = Topology(ranks_per_node=dist.get_world_size())
        topology = self.registry.topology if self.side.dense_once else one_node
        given = {**self.registry.train.codecs.of_wrapper, **options}
        self.dense = DenseGradients(self.dense_bytes, topology, **given)
        return self.dense

    def adapt(self, model: nn.Module, poolings: Sequence[str] = (), **options: Any) -> nn.Module:
        given = {**options, "pool_unique": self.side.pool_unique, "route": self.side.route}
        return super().adapt(model, poolings, **given)

    def default_sharders(self) -> list[ModuleSharder[nn.Module]]:
        sharders: list[ModuleSharder[nn.Module]] = super().default_sharders()
        if self.side.index_dedup:
            sharders = [_index_dedup(sharder) for sharder in sharders]
        return sharders


def _entropy(labels: Tensor) -> float:
    """The entropy, in nats, of labels that are 0 or 1; infinite if all labels are equal."""
    mean = labels.float().mean()
    return float(torch.special.entr(torch.stack([mean, 1 - mean])).sum()) or math.inf


def _index_dedup(sharder: Any) -> Any:
    if type(sharder) is not EmbeddingCollectionSharder:
        return sharder
    return EmbeddingCollectionSharder(fused_params=sharder.fused_params, use_index_dedup=True)


def _endless(loader: Loader) -> Iterator[Batch]:
    while True:
        yield from loader
