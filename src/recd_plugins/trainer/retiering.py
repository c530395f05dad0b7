"""The moves of replicas while a run trains: every so many steps, to the rows that are hot then."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch.distributed as dist

from recd_plugins.data.batch import Batch
from recd_plugins.slots import Callback
from recd_plugins.slots.batch_check import Named
from recd_plugins.trainer.training import Training

if TYPE_CHECKING:
    from recd_plugins.data.dataset import Split
    from recd_plugins.planning.planner_bases import Retiers

__all__ = ["Retiering"]


class Retiering(Callback):
    """Keeps the latest batches of rank 0 and hands them to the planner."""

    def __init__(
        self, planner: Retiers, *, start: int, every: int, keep: int, named: Named
    ) -> None:
        """Inside of `named(when)`, an error of the planner's names it."""
        self._planner, self._named = planner, named
        self._start = start
        self._every = every
        self._recent: deque[Batch] = deque(maxlen=keep if dist.get_rank() == 0 else 0)

    def on_batch(self, training: Training, batch: Batch, split: Split) -> Batch:
        if split == "train":
            self._recent.append(batch)
        return batch

    def before_step(self, training: Training) -> None:
        """Move replicas if it is time, with no backward due."""
        if training.step > self._start and training.step % self._every == 0:
            group = dist.group.WORLD
            assert group is not None  # a job has one
            with self._named("when it moved replicas"):
                self._planner.retier(self._recent, group)
