"""Rows of a huge table counted in bounded memory: the hottest, and about how often each is looked
up."""

from __future__ import annotations

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.planning.access.distribution import Integers, RowDistribution
from recd_plugins.planning.access.forecast import FOLDS
from recd_plugins.planning.access.row_counter import BUFFER, RowCounter, of_rows

__all__ = ["RowSketch"]


class RowSketch:
    """Misra-Gries in batches: `capacity` counters of 16 bytes, mergeable over processes.

    A row's count is too low by at most `error` <= lookups / (capacity + 1), and never too
    high; so every row with more lookups than that is among the counters.

    If `num_rows` is known, rows are counted exactly, with folds, as long as that takes no more
    memory: for that long, a `RowCounter` (`exact`) stands in for the sketch.
    """

    def __init__(self, capacity: int, num_rows: int | None = None) -> None:
        if capacity < 1:
            raise DataError(f"rows: a sketch needs one counter or more, not {capacity}.")
        self.capacity = capacity
        self.exact = None if num_rows is None else RowCounter(num_rows)
        self.samples = 0
        self.lookups = 0
        self._error = 0
        self._ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._waiting: list[Integers] = []
        self._waits = 0

    @property
    def error(self) -> int:
        """The most lookups by which any count is too low."""
        self._count()
        return self._error

    def add(self, ids: Integers, samples: int, fold: int = 0) -> None:
        """Count the lookups of `samples` samples, in any order; a sketch does not distinguish
        folds."""
        if self.exact is not None:
            self.exact.add(ids, samples, fold)
            self.samples = self.exact.samples
            self._check_room()
            return
        self.samples += samples
        self.lookups += len(ids)
        self._waiting.append(np.array(ids, np.int64))
        self._waits += len(ids)
        if self._waits >= max(BUFFER, self.capacity):
            self._count()

    def state(self) -> tuple[Integers, tuple[int, ...]]:
        """[2, R] and numbers, or a `RowCounter`'s, for `merge` of a sketch of the same table."""
        if self.exact is not None:
            return self.exact.state()
        self._count()
        return np.stack([self._ids, self._counts]), (self.samples, self.lookups, self._error)

    def merge(self, counted: Integers, numbers: tuple[int, ...]) -> None:
        """Add what another sketch saw. Errors add up, and so do the lookups to which they are
        relative."""
        of_counter = counted.shape[0] == 3
        if self.exact is not None and of_counter:
            self.exact.merge(counted, numbers)
            self.samples = self.exact.samples
            self._check_room()
            return
        self._give_up_folds()
        self._count()
        if of_counter:
            samples, lookups, error = sum(numbers[:FOLDS]), int(counted[1].sum()), 0
            counted = of_rows(counted)
        else:
            samples, lookups, error = numbers
        self.samples += samples
        self.lookups += lookups
        self._error += error
        self._join(counted[0], counted[1])

    def distribution(self, num_rows: int) -> RowDistribution:
        """p of the counted rows; the rest of the lookups is spread over the rest of the rows."""
        if self.exact is not None:
            return self.exact.distribution()
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
            # No row without a counter has more than `error` lookups; any others were subtracted
            # from counted rows.
            left = self.lookups - int(counts.sum())
            rows = np.append(rows, rest)
            each = np.append(each, min(left / rest, self._error))
        return RowDistribution.of(
            rows,
            each / self.samples,
            ids=self._ids[order],
            error=self._error / self.samples,
        )

    def _check_room(self) -> None:
        assert self.exact is not None
        if self.exact.at_most > 2 * self._pairs and self.exact.counted.shape[1] > self._pairs:
            self._give_up_folds()

    @property
    def _pairs(self) -> int:
        """The number of pairs of a row and a fold, 24 bytes each, that take half the memory of the
        counters."""
        return max(self.capacity // 3, 1)

    def _give_up_folds(self) -> None:
        """Stop counting exactly, and be a sketch from now on."""
        if self.exact is None:
            return
        counted, self.exact = self.exact.counted, None
        self.lookups = int(counted[1].sum())
        self._join(*of_rows(counted)[:2])

    def _count(self) -> None:
        if self._waits:
            ids, counts = np.unique(np.concatenate(self._waiting), return_counts=True)
            self._waiting, self._waits = [], 0
            self._join(ids, counts)

    def _join(self, ids: Integers, counts: Integers) -> None:
        """Add counters; if they are too many, subtract the largest one in excess from each."""
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
