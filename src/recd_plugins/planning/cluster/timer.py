"""A clock for calls that all ranks of a group make together: a call takes as long as on its slowest
rank."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

__all__ = ["IN_A_ROW", "Timer", "middle"]

IN_A_ROW = 16
"""Calls of a run with little to do, such as an exchange of the smallest payload or a rank's own
work: ranks leave a barrier one after the other, which would count as time of a single call."""


@dataclass(frozen=True)
class Timer:
    """Times calls that all ranks of a group make together."""

    group: ProcessGroup
    device: torch.device
    rounds: int

    def seconds(self, call: Callable[[], object], again: int = 1) -> float:
        """Seconds of a call."""
        (taken,) = self.in_turns([call], again)
        return middle(taken)

    def after(self, work: Callable[[], object], call: Callable[[], object], again: int) -> float:
        """Seconds that a call takes when each rank comes to it from work of its own.

        They are what the call adds to the work, which is timed in turns with both, for a machine's
        pace changes; but no fewer than the call takes by itself. On a busy machine what is added
        may be less than the noise of the work."""

        def both() -> None:
            work()
            call()

        working, alone, together = self.in_turns([work, call, both], again)
        added = [both - work for both, work in zip(together, working, strict=True)]
        return max(middle(added), middle(alone))

    def in_turns(
        self, calls: Sequence[Callable[[], object]], again: int = 1
    ) -> list[tuple[float, ...]]:
        """Seconds of each call in each round; a round before them warms up."""
        rounds = [[self._once(call, again) for call in calls] for _ in range(self.rounds + 1)]
        return list(zip(*rounds[1:], strict=True))

    def _once(self, call: Callable[[], object], again: int) -> float:
        """Seconds of a call in one run: its slowest rank's."""
        dist.barrier(self.group)
        begun = time.perf_counter()
        for _ in range(again):
            call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.slowest((time.perf_counter() - begun) / again)

    def slowest(self, took: float) -> float:
        """What it took the rank that it took the longest."""
        found = torch.tensor(took, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return float(found)


def middle(taken: Sequence[float]) -> float:
    """The mean of the middle half. Exchanges take one time or another, as peers send at once or
    in turns, and a step has several: its time is of their mean."""
    quarter = len(taken) // 4
    return statistics.fmean(sorted(taken)[quarter : len(taken) - quarter])
