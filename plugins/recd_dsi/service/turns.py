"""The turns in which the workers of a rank make the batches of an epoch."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from recd_plugins.api.reading import Order

__all__ = ["Turns"]

FEWEST_BATCHES = 4
"""The least number of batches of a turn: for the last one, the next window is read, too."""
MOST_WINDOWS = 4
"""The most windows of a turn."""


class Turns:
    """An epoch's positions, cut where windows begin; turn t belongs to worker t mod their number.

    So the batches of a window are made by the worker that reads it, and workers read their windows
    at the same time.
    """

    def __init__(self, order: Order, epoch: int, stream: int, workers: int) -> None:
        size, length = order.rows_per_batch, order.num_batches
        self._borders = [0]
        if workers == 1:  # it has all windows
            self._borders.append(length)
            return
        begins = [-(-window.position // size) for window in order.windows(epoch, stream)]
        step = max(1, min(MOST_WINDOWS, len(begins) // (4 * max(1, workers))))
        for begin in begins[step::step]:
            if self._borders[-1] + FEWEST_BATCHES <= begin < length:
                self._borders.append(begin)
        self._borders.append(length)

    def __len__(self) -> int:
        return len(self._borders) - 1

    def turn(self, batch: int) -> int:
        """The turn of a position."""
        return min(bisect_right(self._borders, batch) - 1, len(self) - 1)

    def ranges(self) -> list[tuple[int, int]]:
        """Each turn's positions [first, stop)."""
        return list(pairwise(self._borders))
