"""Every so many steps, replicas go to the rows that are hot now."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch
    from recd_plugins.planning.planner_bases import Retiers

__all__ = ["Retiering"]


class Retiering:
    """Keeps the latest batches of rank 0 and hands them to the planner; all ranks run it alike."""

    def __init__(self, planner: Retiers, *, start: int, every: int, keep: int) -> None:
        self._planner = planner
        self._start = start
        self._every = every
        self._recent: deque[Batch] = deque(maxlen=keep if dist.get_rank() == 0 else 0)

    def watch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches, the latest of which are kept as they pass."""
        for batch in batches:
            self._recent.append(batch)
            yield batch

    def before(self, step: int) -> None:
        """Between two steps: move replicas if it is time, with no backward due."""
        if step > self._start and step % self._every == 0:
            group = dist.group.WORLD
            assert group is not None  # a job has one
            self._planner.retier(self._recent, group)
