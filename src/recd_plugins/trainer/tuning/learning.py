"""The speed at which a batch size learns: losses and seconds of its steps, and the time to a given
loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Learning", "loss_of_all"]


@dataclass(frozen=True, kw_only=True)
class Learning:
    """A training from its first step on."""

    batch_size: int
    """Samples of one rank and step."""
    samples_per_step: int
    """Samples of all ranks in a step."""
    memory_mib: float
    """The memory of the rank that needed most."""
    seconds: Sequence[float]
    """The time of each step."""
    losses: Sequence[float]
    """The loss of each step's samples, before it learns from them."""
    warm_up: int
    """The first steps, while pipelines fill and kernels compile: they count as the median one."""

    def running(self, window: int) -> list[float]:
        """The mean loss of the latest `window` samples after each step; whole windows alone."""
        steps = max(1, window // self.samples_per_step)
        ends = range(steps, len(self.losses) + 1)
        return [statistics.fmean(self.losses[end - steps : end]) for end in ends]

    def least(self, window: int) -> float | None:
        """The least of these; None where none of them is a finite number."""
        return min(filter(math.isfinite, self.running(window)), default=None)

    def steps_to(self, loss: float | None, window: int) -> int | None:
        """The first step after which `running` is at most `loss`; None if it never is."""
        if loss is None:
            return None
        running = self.running(window)
        before = len(self.losses) - len(running)
        return next((before + i for i, mean in enumerate(running, 1) if mean <= loss), None)

    def seconds_to(self, loss: float | None, window: int) -> float | None:
        """The time of those steps."""
        steps = self.steps_to(loss, window)
        if steps is None:
            return None
        median = statistics.median(self.seconds[self.warm_up :] or self.seconds)
        warm = min(steps, self.warm_up)
        return warm * median + sum(self.seconds[warm:steps])


def loss_of_all(trainings: Sequence[Learning], window: int) -> float | None:
    """The least loss that each of them reaches, those aside that diverge before any; None where all
    do."""
    each = (one.least(window) for one in trainings)
    return max((loss for loss in each if loss is not None), default=None)
