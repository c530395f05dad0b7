"""How long training waits when workers are killed."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.harness import Figure
from benchmarks.service.registries import LOCAL, service, stack_of
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.process_fleets import end_workers

__all__ = ["stall"]

TWO = {
    **LOCAL,
    "use": "service",
    "workers": 2,
    "prefetch_mib": 1,
    "hedge": 0.3,
    "when_none_answers": "fail",
    "patience": 60,
}


def stall(folder: Path, kills: int, *, samples: int, batch_size: int) -> Figure:
    """In each epoch one of two workers is killed, and the longest wait in the rest of the epoch
    counts."""
    loader = service(stack_of(folder, "IKJT", TWO, samples=samples, batch_size=batch_size))
    list(loader)  # both are there
    worst = []
    for _ in range(kills):
        until = time.monotonic() + 60
        while len(_pids(loader)) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        at, waits = len(loader) // 3, [0.0]
        began = time.perf_counter()
        for number, _ in enumerate(loader):
            if number > at:
                waits.append(time.perf_counter() - began)
            if number == at:
                _kill_one(_pids(loader))
            began = time.perf_counter()
        worst.append(max(waits))
    end_workers()
    return Figure(
        name="a worker of two is killed: the longest wait for a batch",
        value=max(worst),
        unit="s",
        target=2,
        at_most=True,
        note=f"the worst of {kills}, median {statistics.median(worst):.2f} s; at most 1 MiB waits "
        "in the client, and nothing trains between two batches",
    )


def _kill_one(pids: Sequence[int]) -> None:
    """Kill the first worker that is alive. The loss of an earlier one may not have been noticed
    yet."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return


def _pids(loader: ServiceLoader) -> list[int]:
    backend = loader.fleet().backend
    return [] if backend is None else [pid for pid in backend.pids if pid is not None]
