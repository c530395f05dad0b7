"""How long a process group takes: the slowest rank's time of a call, of several runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

__all__ = ["IN_A_ROW", "ROUNDS", "middle", "once", "seconds_of"]

ROUNDS = 12
"""Runs, of which the middle half counts."""
IN_A_ROW = 16
"""Calls of a run with the smallest payload, or of a rank's own work: ranks leave a barrier one
after the other, which would count as time of a single call."""


def seconds_of(
    call: Callable[[], object], world: ProcessGroup, device: torch.device, again: int = 1
) -> float:
    """Seconds of a call; the first run warms up."""
    return middle([once(call, world, device, again) for _ in range(ROUNDS + 1)][1:])


def once(
    call: Callable[[], object], world: ProcessGroup, device: torch.device, again: int = 1
) -> float:
    """Seconds of a call in one run: its slowest rank's."""
    dist.barrier(world)
    begun = time.perf_counter()
    for _ in range(again):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    slowest = torch.tensor((time.perf_counter() - begun) / again, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=world)
    return float(slowest)


def middle(taken: Sequence[float]) -> float:
    """The mean of the middle half. Exchanges take one time or another, as peers send at once or
    in turns, and a step has several: its time is of their mean."""
    quarter = len(taken) // 4
    return statistics.fmean(sorted(taken)[quarter : len(taken) - quarter])
