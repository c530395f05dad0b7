"""Counts of a stream's hottest rows in bounded memory, with the error that they may have."""

from __future__ import annotations

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.planning.rows import Integers, RowDistribution

__all__ = ["RowSketch"]

BUFFER = 1 << 18
"""Lookups that wait to be counted together; or as many as there are counters."""


class RowSketch:
    """Misra-Gries in batches: `capacity` counters of 16 bytes, mergeable over processes.

    A row's count is too low by at most `error` <= lookups / (capacity + 1), and never too
    high; so every row with more lookups than that is among the counters.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise DataError(f"rows: a sketch needs one counter or more, not {capacity}.")
        self.capacity = capacity
        self.samples = 0
        self.lookups = 0
        self._error = 0
        self._ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._waiting: list[Integers] = []
        self._waits = 0

    @property
    def error(self) -> int:
        """The most lookups that any count is too low by."""
        self._count()
        return self._error

    def add(self, ids: Integers, samples: int) -> None:
        """The lookups of so many samples, in any order."""
        self.samples += samples
        self.lookups += len(ids)
        self._waiting.append(np.array(ids, np.int64))
        self._waits += len(ids)
        if self._waits >= max(BUFFER, self.capacity):
            self._count()

    def merge(self, other: RowSketch) -> None:
        """Take over what another one saw; errors add up, and so do the lookups they refer to."""
        self._count()
        other._count()
        self.samples += other.samples
        self.lookups += other.lookups
        self._error += other._error
        self._join(other._ids, other._counts)

    def distribution(self, num_rows: int) -> RowDistribution:
        """p of the counted rows; the rest of the lookups is spread over the rest of the rows."""
        self._count()
        if not self.samples:
            raise DataError("rows: nothing was counted: there are no samples.")
        if len(self._ids) > num_rows or (self._ids.size and self._ids.max() >= num_rows):
            raise DataError(f"rows: ids up to {self._ids.max()} are no rows of {num_rows}.")
        order = np.argsort(-self._counts, kind="stable")
        counts = self._counts[order]
        starts = np.flatnonzero(np.diff(counts, prepend=-1))
        rows, each = np.diff(starts, append=len(order)), counts[starts].astype(np.float64)
        rest = num_rows - len(order)
        if rest:
            # No row without a counter has more than `error`; what is beyond that was taken off
            # the counted ones.
            left = self.lookups - int(counts.sum())
            rows = np.append(rows, rest)
            each = np.append(each, min(left / rest, self._error))
        return RowDistribution.of(
            rows,
            each / self.samples,
            ids=self._ids[order],
            error=self._error / self.samples,
        )

    def _count(self) -> None:
        if self._waits:
            ids, counts = np.unique(np.concatenate(self._waiting), return_counts=True)
            self._waiting, self._waits = [], 0
            self._join(ids, counts)

    def _join(self, ids: Integers, counts: Integers) -> None:
        """Add counters; if they are too many, take the first that is too many off each."""
        both = np.concatenate([self._ids, ids])
        self._ids, where = np.unique(both, return_inverse=True)
        added = np.zeros(len(self._ids), np.int64)
        np.add.at(added, where, np.concatenate([self._counts, counts]))
        excess = len(added) - self.capacity
        if excess > 0:
            cut = np.partition(added, excess - 1)[excess - 1]
            added -= cut
            self._error += int(cut)
            kept = added > 0
            self._ids, added = self._ids[kept], added[kept]
        self._counts = added
