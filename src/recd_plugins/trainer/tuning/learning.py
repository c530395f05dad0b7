"""How fast training learns with a batch size: the losses and seconds of its steps, and the time to
a given loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Learning", "loss_of_all"]


@dataclass(frozen=True, kw_only=True)
class Learning:
    """A training, from its first step on."""

    batch_size: int
    """Samples of one rank and step."""
    samples_per_step: int
    """Samples of all ranks in a step."""
    memory_mib: float
    """The memory of the rank that needed most."""
    seconds: Sequence[float]
    """The time of each step."""
    losses: Sequence[float]
    """The loss of each step's samples, before the model learns from them."""
    warm_up: int
    """The number of first steps in which pipelines fill and kernels compile; each counts as long as
    the median step."""

    def running(self, window: int) -> list[float]:
        """The mean loss of the latest `window` samples after each step, for whole windows only."""
        steps = max(1, window // self.samples_per_step)
        ends = range(steps, len(self.losses) + 1)
        return [statistics.fmean(self.losses[end - steps : end]) for end in ends]

    def least(self, window: int) -> float | None:
        """The least of these means; None if none of them is finite."""
        return min(filter(math.isfinite, self.running(window)), default=None)

    def steps_to(self, loss: float | None, window: int) -> int | None:
        """The first step after which `running` is at most `loss`; None if it never is, or without a
        `loss`."""
        if loss is None:
            return None
        running = self.running(window)
        before = len(self.losses) - len(running)
        return next((before + i for i, mean in enumerate(running, 1) if mean <= loss), None)

    def seconds_to(self, loss: float | None, window: int) -> float | None:
        """The time of those steps; None if `steps_to` is None."""
        steps = self.steps_to(loss, window)
        if steps is None:
            return None
        median = statistics.median(self.seconds[self.warm_up :] or self.seconds)
        warm = min(steps, self.warm_up)
        return warm * median + sum(self.seconds[warm:steps])


def loss_of_all(trainings: Sequence[Learning], window: int) -> float | None:
    """The least loss that all trainings reach, without those that have no finite one; None if no
    training has."""
    each = (one.least(window) for one in trainings)
    return max((loss for loss in each if loss is not None), default=None)
