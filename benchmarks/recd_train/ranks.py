"""What runs on a rank: sides take turns, step by step, on batches in memory."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice

import torch
import torch.distributed as dist

from benchmarks.recd_train.workload import Side, Workload
from recd_plugins.data.batch import Batch
from recd_plugins.slots import Loader
from recd_plugins.stack import Stack, load
from recd_plugins.trainer.assemble import Job, assemble
from recd_plugins.trainer.memory import PeakMemory
from recd_plugins.trainer.traffic import Traffic, TrafficCounter

__all__ = ["Steps", "step_memory", "take_turns"]

CPU = torch.device("cpu")
WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Of one side, on one rank."""

    seconds: list[float]
    """Of each step, from barrier to barrier."""
    samples: int
    """A step's, of all ranks."""
    loss: float
    """The last step's."""
    traffic: Traffic
    """Bytes to collectives, of one step more."""
    dedupe_factor: float
    """Mean over the batches; 1 where nothing is deduplicated."""


def take_turns(
    workload: Workload,
    sides: Mapping[str, Side],
    *,
    rounds: int,
    batches: int,
    reading: bool = False,
) -> dict[str, Steps]:
    """A step of each side, again and again, each round the other way about.

    The batches are held ready; `reading`: they come from the reader, within the step.
    """
    trainings = {
        name: _Training(workload, side, None if reading else batches)
        for name, side in sides.items()
    }
    names = list(trainings)
    for number in range(WARM_UP + rounds):
        for name in names:
            trainings[name].step(counts=number >= WARM_UP)
        names.reverse()
    return {name: training.finish() for name, training in trainings.items()}


def step_memory(workload: Workload, side: Side, *, steps: int, batches: int) -> int:
    """Bytes that this process grows by within steps, at most; for a process that did no other."""
    training = _Training(workload, side, batches)
    for _ in range(WARM_UP):
        training.step(counts=False)
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # what building and warming up left goes back
    memory = PeakMemory(CPU)
    for _ in range(steps):
        training.step(counts=True)
    return memory.above()


class _Training:
    """A side's job and its batches."""

    def __init__(self, workload: Workload, side: Side, batches: int | None) -> None:
        stack = load(workload.registry(side))
        loader = stack.loader(dist.get_rank(), dist.get_world_size())
        self._samples = stack.registry.train.batch_size * dist.get_world_size()
        self._factors: list[float] = []
        if batches is None:
            self._batches = _endless(loader)
        else:
            held = list(islice(loader, batches))
            self._factors = [one.dedup.dedupe_factor() for one in held if one.dedup is not None]
            self._batches = cycle(held)
        self._job = _job(stack, side)
        self._seconds: list[float] = []
        self._loss = torch.zeros(())

    def step(self, *, counts: bool) -> None:
        gc.collect()
        dist.barrier()
        began = time.perf_counter()
        self._loss, *_ = self._job.pipeline.progress(self._batches)
        dist.barrier()
        if counts:
            self._seconds.append(time.perf_counter() - began)

    def finish(self) -> Steps:
        with TrafficCounter() as counter:
            self._job.pipeline.progress(self._batches)
        return Steps(
            seconds=self._seconds,
            samples=self._samples,
            loss=self._loss.item(),
            traffic=counter.traffic,
            dedupe_factor=sum(self._factors) / len(self._factors) if self._factors else 1.0,
        )


def _job(stack: Stack, side: Side) -> Job:
    return assemble(stack, CPU)


def _endless(loader: Loader) -> Iterator[Batch]:
    while True:
        yield from loader
