"""Workers that are killed and stopped: how long training waits, and whether batches stay."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Figure
from benchmarks.service.registries import LOCAL, service, stack_of
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.reader import end_workers
from recd_plugins.data.batch import Batch
from recd_plugins.data.wired_batch import batch_to_record

__all__ = ["stall", "trials"]

TWO = {
    **LOCAL,
    "use": "service",
    "workers": 2,
    "prefetch_mib": 1,
    "hedge": 0.3,
    "when_none_answers": "fail",
    "patience": 60,
}
AT_ONCE = 3
"""Disturbances of a trial, over two epochs."""


def stall(folder: Path, kills: int, *, samples: int, batch_size: int) -> Figure:
    """Each epoch one worker of two is killed, and the longest wait of the rest of it counts."""
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
                os.kill(_pids(loader)[0], signal.SIGKILL)
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


def trials(folder: Path, count: int, *, samples: int, batch_size: int, seed: int = 0) -> Figure:
    """Two epochs each, in which workers are disturbed three times; batches must be the local
    reader's, by digest."""
    sizes = {"samples": samples, "batch_size": batch_size}
    local = stack_of(folder, "IKJT", LOCAL, **sizes).loader(0, 1)
    expected = [_digest(batch) for _ in range(2) for batch in local]
    chance, same = random.Random(seed), 0
    for number in range(count):
        disturb = chance.choice(DISTURBANCES)
        loader = service(stack_of(folder, "IKJT", TWO, **sizes))
        at, found = set(chance.sample(range(1, len(expected) - 1), AT_ONCE)), []
        for _ in range(2):
            for batch in loader:
                found.append(_digest(batch))
                if len(found) in at:
                    disturb(_pids(loader), chance)
        end_workers()
        same += found == expected
        outcome = "same batches" if found == expected else "OTHER BATCHES"
        print(f"trial {number + 1} of {count}: {disturb.__name__}, {outcome}", file=sys.stderr)
    return Figure(
        name="trials of random kills and stops whose batches were all the undisturbed run's",
        value=same,
        unit=f"of {count}",
        target=count,
        note=f"{AT_ONCE} disturbances in two epochs of {len(local)} batches each, by digest",
    )


def kill_one(pids: list[int], chance: random.Random) -> None:
    """One worker ends."""
    if pids:
        _signal(chance.choice(pids), signal.SIGKILL)


def kill_all(pids: list[int], chance: random.Random) -> None:
    """All end."""
    for pid in pids:
        _signal(pid, signal.SIGKILL)


def stop_one(pids: list[int], chance: random.Random) -> None:
    """One hangs, and goes on two seconds later."""
    if pids:
        pid = chance.choice(pids)
        _signal(pid, signal.SIGSTOP)
        timer = threading.Timer(2.0, _signal, (pid, signal.SIGCONT))
        timer.daemon = True
        timer.start()


DISTURBANCES: tuple[Callable[[list[int], random.Random], None], ...] = (
    kill_one,
    kill_all,
    stop_one,
)


def _signal(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, which)


def _pids(loader: ServiceLoader) -> list[int]:
    backend = loader.fleet().backend
    return [] if backend is None else [pid for pid in backend.pids if pid is not None]


def _digest(batch: Batch) -> str:
    return hashlib.sha256(batch_to_record(batch).serialize()).hexdigest()
