"""Processes of the service: the processor time that one has taken, and the cores on which it may
run."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from recd_dsi.service.loader import ServiceLoader

__all__ = ["begin_anew", "cores", "on_cores", "processor_seconds", "worker_of"]

LOOK, IDLE = 0.05, 0.002
"""A process rests if it takes less than `IDLE` of processor time in `LOOK` seconds."""


def cores() -> list[int]:
    """The cores that this process may have; none if the system does not report them, or cannot pin
    processes."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))


def processor_seconds(pid: int) -> float:
    """The processor time that a process has taken, over all of its threads."""
    return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid, on Linux


def worker_of(loader: ServiceLoader) -> int:
    """The process of a loader's only worker."""
    backend = loader.fleet().backend
    assert backend is not None
    (pid,) = backend.pids
    assert pid is not None
    return pid


def begin_anew(*loaders: ServiceLoader) -> None:
    """Loaders of one worker each go on with an epoch that they have not announced to it, once it
    has made what they did announce: so a measured epoch has all of its own work."""
    for loader in loaders:
        state = loader.state_dict()
        loader.load_state_dict({**state, "epoch": state["epoch"] + 1, "batches": 0})
    for worker in {worker_of(loader) for loader in loaders}:
        began = -IDLE
        while (now := processor_seconds(worker)) - began >= IDLE:
            began = now
            time.sleep(LOOK)


@contextlib.contextmanager
def on_cores(of: Mapping[int, int]) -> Iterator[None]:
    """Within this context, each process has only the named core; afterwards it has all again."""
    whole = cores()
    for pid, core in of.items():
        _pin(pid, [core])
    try:
        yield
    finally:
        for pid in of:
            _pin(pid, whole)


def _pin(pid: int, only: list[int]) -> None:
    # Threads that begin later have the cores of those that begin them.
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(task.name), only)
