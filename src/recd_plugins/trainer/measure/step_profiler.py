"""Profiles a few steps of a run with torch.profiler: a breakdown, and a trace to look at."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from torchrec.distributed.types import ShardedModule

from recd_plugins.compat.both_ways import show_messages
from recd_plugins.compat.pytorch import recorded_events
from recd_plugins.trainer.measure.breakdown import PARTS, STEP, Span, breakdown, device_breakdown
from recd_plugins.trainer.measure.timeline import timeline, timelines_of_ranks

__all__ = ["StepProfiler", "pooling_modules", "spans_of"]


class StepProfiler:
    """Watches `steps` steps of a rank, once, in a run from step `start` to step `stop`.

    They follow the first `after` steps and one more to warm up; a run that is resumed later waits
    for `after` more steps. In a short run they are the last that fit before the pipeline empties.
    Each pooling module has its own range meanwhile.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        *,
        start: int,
        stop: int,
        after: int,
        steps: int,
    ) -> None:
        self._model = model
        self._device = device
        begins = 0 if start < after else start
        self._first = max(start + 2, min(begins + after + 1, stop - 2 - steps))
        self._steps = steps if self._first + steps <= stop - 2 else 0
        self.too_short = bool(steps) and not self._steps
        """Whether the run has too few steps to be profiled."""
        self._profiler: profile | None = None
        self._shown = ExitStack()
        """Shows messages between ranks in the profile while it is entered."""
        self.timeline: list[dict[str, Any]] = []
        """The timelines of the ranks, after `finish`."""
        self._handles: list[Any] = []

    def covers(self, step: int) -> bool:
        """Whether step `step`, counted from 0, is watched or warms up."""
        return bool(self._steps) and self._first - 1 <= step < self._first + self._steps

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Surrounds the training of step `number`."""
        if not self.covers(number):
            yield
            return
        if self._profiler is None:
            self._profiler = self._start()
        with record_function(STEP):
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        if self.ends(number):
            self._shown.close()  # before the profiler stops
        self._profiler.step()

    def ends(self, step: int) -> bool:
        """Whether step `step` was the last that is watched."""
        return self._profiler is not None and step == self._first + self._steps - 1

    def finish(self, trace: Path | None) -> dict[str, float]:
        """Milliseconds of each part of a step, mean over steps and ranks; all ranks must call it.

        The trace is written to `trace`, for chrome://tracing or ui.perfetto.dev.
        """
        assert self._profiler is not None
        self._stop(self._profiler)
        if trace is not None:
            self._profiler.export_chrome_trace(str(trace))
        spans, device = spans_of(self._profiler, self._device)
        self._profiler = None
        gc.collect()  # it is in a cycle, and kineto's trace crashed if it was freed steps later
        parts = device_breakdown(spans, device) if device else breakdown(spans)
        self.timeline = timelines_of_ranks(timeline([*spans, *_in_flight(device)]), self._device)
        mean = torch.tensor(list(parts.values()), dtype=torch.float64, device=self._device)
        dist.all_reduce(mean)
        mean *= 1e3 / self._steps / dist.get_world_size()
        return dict(zip(PARTS, mean.tolist(), strict=True))

    def close(self) -> None:
        """Drop what a run that ended among these steps has recorded: kineto would go on recording,
        and crashed in the process's next profile."""
        if self._profiler is not None:
            self._shown.close()
            self._stop(self._profiler)
            self._profiler = None
            gc.collect()  # as after `finish`

    def _stop(self, profiler: profile) -> None:
        profiler.stop()
        for handle in self._handles:
            handle.remove()

    def _start(self) -> profile:
        for name, module in pooling_modules(self._model):
            self._handles += _ranged(module, f"## pooling {name} ##")
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=self._steps, repeat=1)
        profiler = profile(activities=activities, schedule=schedule)
        self._shown.enter_context(show_messages())
        profiler.start()
        return profiler


def pooling_modules(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules with "pooling" in their name or class; sharded tables are not
    searched."""
    for child, module in model.named_children():
        path = f"{name}.{child}" if name else child
        if isinstance(module, ShardedModule):
            continue
        is_list = isinstance(module, nn.ModuleList | nn.ModuleDict)
        if "pooling" in f"{path} {type(module).__name__}".lower() and not is_list:
            yield path, module
        else:
            yield from pooling_modules(module, path)


def _ranged(module: nn.Module, name: str) -> list[Any]:
    """Hooks that put a range around each forward."""
    ranges: list[Any] = []

    def enter(*_: Any) -> None:
        ranges.append(record_function(name))
        ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    return [
        module.register_forward_pre_hook(enter),
        module.register_forward_hook(leave, always_call=True),
    ]


def _in_flight(device: Iterable[Span]) -> Iterator[Span]:
    """The kernels of a device, marked as running beside the thread that launched them."""
    return (one._replace(in_flight=True) for one in device)


def spans_of(profiler: profile, on: torch.device) -> tuple[list[Span], list[Span]]:
    """The spans on this process's threads, and those on the device that it trains on."""
    if on.type == "cpu":
        return list(_spans_on_cpu(profiler)), []
    here: list[Span] = []
    device: list[Span] = []
    for event in profiler.events() or ():
        span = Span(
            name=event.name,
            start=event.time_range.start * 1e-6,
            end=event.time_range.end * 1e-6,
            thread=event.thread,
            in_flight=event.is_async,
            sequence=event.sequence_nr,
            forward_thread=event.fwd_thread or 0,
            kernels=1e-6
            * sum(one.duration for one in event.kernels if not one.name.startswith("nccl")),
        )
        (here if event.device_type == DeviceType.CPU else device).append(span)
    return here, device


def _spans_on_cpu(profiler: profile) -> Iterator[Span]:
    """The spans from kineto's events. torch's own events, which also have the kernels that each
    launched, take several times as long to make."""
    events = list(recorded_events(profiler))
    first = min((event.start_ns() for event in events), default=0)
    for event in events:
        thread = event.start_thread_id()
        yield Span(
            name=event.name(),
            start=(event.start_ns() - first) * 1e-9,
            end=(event.end_ns() - first) * 1e-9,
            thread=thread,
            in_flight=event.is_async() or thread != event.end_thread_id(),
            sequence=event.sequence_nr(),
            forward_thread=event.fwd_thread_id() or 0,
        )
