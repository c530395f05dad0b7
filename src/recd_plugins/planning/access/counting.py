"""Rows counted from the ids of batches, exactly or sketched: from a stream to a distribution."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.planning.access.distribution import Floats, Integers, RowDistribution

__all__ = [
    "COUNTERS",
    "EXACT_ROWS",
    "Counter",
    "RowCounter",
    "RowSketch",
    "counters",
    "distribution",
]


BUFFER = 1 << 18
"""Lookups that wait to be counted together; or as many as there are counters."""


class RowCounter:
    """Counts the lookups of each row, and the batches that hold it; mergeable over processes.

    It takes 24 bytes for each row that was looked up. The batches say what formulas cannot: how
    far a row's lookups come together, in one history or in the samples of one session.
    `distribution` turns them into `presence`.
    """

    def __init__(self, num_rows: int) -> None:
        self.samples = 0
        self._num_rows = num_rows
        self._batches = 0
        self._counted = np.empty((3, 0), np.int64)
        self._waiting: list[Integers] = []
        self._waits = 0

    def add(self, ids: Integers, samples: int) -> None:
        """The lookups of a batch of `samples` samples, in any order; batches of one size."""
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self._num_rows:
            wrong = int(ids.min() if ids.min() < 0 else ids.max())
            raise DataError(
                f"rows: id {wrong} is not in [0, {self._num_rows}): a transform yields ids "
                "that its schema does not allow, or the table is too small."
            )
        rows, lookups = np.unique(ids, return_counts=True)
        self._wait(np.stack([rows, lookups, np.ones_like(rows)]))
        self._batches += 1
        self.samples += samples

    def state(self) -> tuple[Integers, tuple[int, ...]]:
        """[3, R] and numbers, for `merge` of a counter of the same table."""
        return self.counted, (self.samples, self._batches)

    def merge(self, counted: Integers, numbers: tuple[int, ...]) -> None:
        """Take over what another one counted, of other batches of the same size."""
        self._wait(counted)
        samples, batches = numbers
        self.samples += samples
        self._batches += batches

    @property
    def counted(self) -> Integers:
        """[3, R] rows that were looked up, ascending; the lookups of each; the batches with it."""
        if self._waiting:
            every = np.concatenate([self._counted, *self._waiting], axis=1)
            self._waiting, self._waits = [], 0
            every = every[:, np.argsort(every[0], kind="stable")]
            starts = np.flatnonzero(np.diff(every[0], prepend=-1))
            sums = np.add.reduceat(every[1:], starts, axis=1) if len(starts) else every[1:]
            self._counted = np.vstack([every[:1, starts], sums])
        return self._counted

    def _wait(self, counted: Integers) -> None:
        self._waiting.append(counted)
        self._waits += counted.shape[1]
        if self._waits >= max(BUFFER, self._counted.shape[1]):
            _ = self.counted

    def distribution(self, *, sample: bool = False) -> RowDistribution:
        """p = lookups / samples; presence q such that 1 - (1 - q)^B is the share of batches of
        B samples that hold a row, over all rows with as many lookups. Ids: of all that occur.

        Where what was counted is a `sample` of what will come, rows not seen yet will come too:
        each row seen gives d = n1 / (n1 + 2 n2) of a lookup to them (Ney's absolute
        discounting; n1, n2 rows were looked up once, twice).
        """
        if not self.samples:
            raise DataError("rows: nothing was counted: there are no samples.")
        ids, lookups, holding = self.counted[:, np.argsort(-self.counted[1], kind="stable")]
        starts = np.flatnonzero(np.diff(lookups, prepend=-1))
        counts, each = np.diff(starts, append=len(ids)), lookups[starts].astype(np.float64)
        held = np.zeros(0)
        if len(ids):
            held = np.add.reduceat(holding, starts) / counts
        # Seen in every batch: count half a batch as without it, or presence would be 1.
        share = np.minimum(held, self._batches - 0.5) / self._batches
        presence = -np.expm1(np.log1p(-share) * self._batches / self.samples)
        always = np.where(held == self._batches, np.minimum(each / self.samples, 1.0), 0.0)
        presence = np.maximum(presence, always)
        unseen, given = self._num_rows - len(ids), 0.0
        if sample and unseen:
            given = _discount(counts, each, unseen)
            presence *= 1 - given / each
        if unseen:
            each = each - given
            # At most as much as each that was seen, after rounding too: then they come last.
            rest = min(given * len(ids) / unseen, each[-1] if len(each) else 0.0)
            counts, each = np.append(counts, unseen), np.append(each, rest)
            presence = np.append(presence, rest / self.samples)
        return RowDistribution.of(counts, each / self.samples, presence.clip(max=1.0), ids=ids)


def _discount(counts: Integers, lookups: Floats, unseen: int) -> float:
    """What each row that was seen gives of its lookups to those that were not."""
    once, twice = (int(counts[lookups == times].sum()) for times in (1, 2))
    if not once:
        return 0.0
    # No row that was not seen gets more than one that was.
    return min(once / (once + 2 * twice), unseen / (unseen + int(counts.sum())))


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

    def state(self) -> tuple[Integers, tuple[int, ...]]:
        """[2, R] and numbers, for `merge` of a sketch of the same table."""
        self._count()
        return np.stack([self._ids, self._counts]), (self.samples, self.lookups, self._error)

    def merge(self, counted: Integers, numbers: tuple[int, ...]) -> None:
        """Take over what another one saw; errors add up, and so do the lookups they refer to."""
        self._count()
        samples, lookups, error = numbers
        self.samples += samples
        self.lookups += lookups
        self._error += error
        self._join(counted[0], counted[1])

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


Counter = RowCounter | RowSketch

EXACT_ROWS = 1 << 26
"""Rows of all tables that are counted exactly: 24 bytes each once it is seen, so 1.6 GB."""
COUNTERS = 1 << 22
"""Counters of a sketch: 64 MB, and counts too low by 1 / 2^22 of all lookups at most."""
ALL_COUNTERS = 1 << 26
"""Counters of all sketches, which share them once they are more than 16: 1 GB."""


def counters(num_rows: Mapping[str, int], *, exact_rows: int = EXACT_ROWS) -> dict[str, Counter]:
    """A counter for each table: exact from the smallest on, while their rows are no more than
    `exact_rows` in all; the larger ones are sketched."""
    left, exact = exact_rows, set()
    for name in sorted(num_rows, key=lambda name: num_rows[name]):
        left -= num_rows[name]
        if left < 0:
            break
        exact.add(name)
    capacity = min(COUNTERS, ALL_COUNTERS // max(len(num_rows) - len(exact), 1))
    return {
        name: RowCounter(rows) if name in exact else RowSketch(capacity)
        for name, rows in num_rows.items()
    }


def distribution(counter: Counter, num_rows: int, *, sample: bool) -> RowDistribution:
    """What was counted of a table; `sample` leaves lookups to the rows that an exact count lacks,
    as a sketch does anyway."""
    if isinstance(counter, RowSketch):
        return counter.distribution(num_rows)
    return counter.distribution(sample=sample)
