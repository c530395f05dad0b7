"""Rows counted exactly, and by fold, from the ids of batches: from a stream to a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from recd_plugins.errors import DataError
from recd_plugins.planning.access.distribution import Floats, Integers, RowDistribution, falling
from recd_plugins.planning.access.forecast import FOLDS, FoldCounts, Forecast, forecast

__all__ = ["BUFFER", "RowCounter", "of_rows"]

Bools: TypeAlias = npt.NDArray[np.bool_]

MOST_PAIRS = 1 << 25
"""The most pairs of a row and a fold that a counter keeps, 24 bytes each. Beyond that, folds are
joined in twos, until two are left."""
MOST_BATCHES = FOLDS
"""The most batches whose ids are counted together: as the number of a pair, that of a row and one
of these batches fits into 64 bits."""
BUFFER = 1 << 18
"""How many lookups are collected before they are counted together; or the number of counters, if
that is larger."""


class RowCounter:
    """Counts the lookups of each row, and the batches that contain it; mergeable over processes.

    It takes 24 bytes for each pair of a row and a fold that looked it up. The batches show what
    formulas cannot: how much a row's lookups cluster, in one history or in the samples of one
    session. `distribution` turns them into `presence`. Folds are parts of the counted batches. Each
    is held out in turn, to see how well the others forecast it.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._samples = np.zeros(FOLDS, np.int64)
        self._batches = np.zeros(FOLDS, np.int64)
        self._counted = np.empty((3, 0), np.int64)
        self._waiting: list[Integers] = []
        """Counts that are to be summed."""
        self._ids: list[Integers] = []
        self._folds_of_ids: list[int] = []
        """The ids of batches that are to be counted, and the fold of each batch."""
        self._waits = 0
        self._joined = 1
        """How many folds are joined into one, which has the number of the first."""

    @property
    def samples(self) -> int:
        return int(self._samples.sum())

    def add(self, ids: Integers, samples: int, fold: int = 0) -> None:
        """Count the lookups of a batch of `samples` samples, in any order.

        Batches that resemble each other, such as those of one session or hour, belong in one fold.
        """
        fold -= fold % self._joined
        if ids.size:
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self.num_rows:
                raise DataError(
                    f"rows: id {low if low < 0 else high} is not in [0, {self.num_rows}): a "
                    "transform makes ids that its schema does not allow, or the table is too small."
                )
            self._ids.append(np.array(ids, np.int64))
            self._folds_of_ids.append(fold)
        self._batches[fold] += 1
        self._samples[fold] += samples
        self._wait(len(ids))  # last, since it may join folds

    @property
    def folds(self) -> int:
        """The number of folds that have samples."""
        return int(np.count_nonzero(self._samples))

    @property
    def bands(self) -> int:
        """R of `distribution`."""
        seen = of_rows(self.counted)
        return len(np.unique(seen[1])) + int(seen.shape[1] < self.num_rows)

    def lookups_of(self, ids: Integers, folds: Integers) -> tuple[Floats, Floats]:
        """The lookups of some rows: as counted; and as they would be if all folds were like the
        others than the one in `folds` that is given for each row."""
        pairs, lookups, _ = self.counted
        seen = of_rows(self.counted)
        every = _found(seen[0], seen[1], ids)
        folds = folds - folds % self._joined
        own = _found(pairs, lookups, ids * FOLDS + folds)
        others = self.samples - self._samples[folds]
        return every, (every - own) * self.samples / np.maximum(others, 1)

    def by_fold(self, rows: Integers) -> tuple[Floats, Floats]:
        """[FOLDS] the lookups of some rows, which ascend; and those of all rows."""
        pairs, lookups, _ = self.counted
        each, folds = np.divmod(pairs, FOLDS)
        at = np.minimum(np.searchsorted(rows, each), len(rows) - 1)
        some, every = (
            np.bincount(folds, weights, FOLDS).astype(np.float64)
            for weights in (lookups * (rows[at] == each), lookups)
        )
        return some, every

    def bands_of(self, lookups: Floats) -> Integers:
        """For each number of lookups, the band of `distribution` in which such rows are."""
        each = np.unique(of_rows(self.counted)[1])[::-1].astype(np.float64)
        found: Integers = np.searchsorted(-each, -lookups, side="left")
        return np.minimum(found, self.bands - 1)

    def state(self) -> tuple[Integers, tuple[int, ...]]:
        """[3, P] and numbers, for `merge` of a counter of the same table."""
        counted = self.counted
        return counted, (*self._samples.tolist(), *self._batches.tolist(), self._joined)

    def merge(self, counted: Integers, numbers: tuple[int, ...]) -> None:
        """Add what another counter counted in other batches."""
        *of_folds, joined = numbers
        self._waiting.append(counted)
        self._wait(counted.shape[1])
        samples, batches = np.array(of_folds, np.int64).reshape(2, FOLDS)
        self._samples += samples
        self._batches += batches
        self._join(max(joined, self._joined))

    @property
    def counted(self) -> Integers:
        """[3, P] row * FOLDS + fold of each pair, ascending; its lookups; the batches that have
        it."""
        if self._waits:
            self._counted = _summed(self._every())
            while self._counted.shape[1] > MOST_PAIRS and self._joined < FOLDS // 2:
                self._join(2 * self._joined)
        return self._counted

    @property
    def at_most(self) -> int:
        """An upper limit of the number of pairs, known without counting."""
        return self._counted.shape[1] + self._waits

    def _join(self, folds: int) -> None:
        """Join every `folds` folds into one, in counted lookups and in waiting ones."""
        if folds == 1:
            return
        self._joined = folds
        every = self._every()
        every[0] -= every[0] % folds  # FOLDS is a multiple of `folds`, so rows stay the same
        self._counted = _summed(every)
        for numbers in (self._samples, self._batches):
            sums = numbers.reshape(-1, folds).sum(axis=1)
            numbers[:] = 0
            numbers[::folds] = sums

    def _wait(self, more: int) -> None:
        """Note that so many counts or ids more are waiting."""
        self._waits += more
        if len(self._ids) == MOST_BATCHES:
            self._count_ids()
        if self._waits >= max(BUFFER, self._counted.shape[1]):
            _ = self.counted

    def _count_ids(self) -> None:
        if self._ids:
            self._waiting.append(_of_batches(self._ids, self._folds_of_ids))
        self._ids, self._folds_of_ids = [], []

    def _every(self) -> Integers:
        """[3, P] all counts, not summed yet; nothing waits from then on."""
        self._count_ids()
        every = np.concatenate([self._counted, *self._waiting], axis=1)
        self._waiting, self._waits = [], 0
        return every

    def distribution(
        self, *, sample: bool = False, counted_share: float = 0.0, in_order: bool = False
    ) -> RowDistribution:
        """p = lookups / samples; presence q such that 1 - (1 - q)^B is the share of batches of
        B samples that hold a row, over all rows with as many lookups. Ids: of all that occur.

        If the counted batches are a `sample` of those to come, p and presence are forecast for
        these (`forecast`), except for `counted_share` of them, which are the counted ones. With a
        single fold, nothing can be held out: then each row seen gives d = n1 / (n1 + 2 n2) of a
        lookup to rows not seen (Ney's absolute discounting; n1, n2 rows were looked up once,
        twice). `in_order`: only the first batches were counted.
        """
        if not self.samples:
            raise DataError("rows: nothing was counted: there are no samples.")
        every = of_rows(self.counted)
        ids, lookups, holding = every[:, np.argsort(-every[1], kind="stable")]
        starts = np.flatnonzero(np.diff(lookups, prepend=-1))
        counts, each = np.diff(starts, append=len(ids)), lookups[starts].astype(np.float64)
        held = np.zeros(0)
        if len(ids):
            held = np.add.reduceat(holding, starts) / counts
        samples, batches, unseen = self.samples, int(self._batches.sum()), self.num_rows - len(ids)
        rates = _Rates(each / samples, held / batches)
        if sample:
            found = forecast(self._folds(), lookups[starts], self.num_rows, in_order=in_order)
            if found is not None:
                rates = rates.forecast(found, samples / batches, counted_share)
            elif unseen:
                given = _discount(counts, each, unseen)
                rates = rates.discounted(given, each, len(ids), samples=samples, batches=batches)
        counts = np.append(counts, unseen)
        p = falling(np.append(rates.p, rates.unseen / max(unseen, 1)), counts)
        share = np.append(rates.share, rates.unseen_share / max(unseen, 1))
        always = np.append(held == batches, False)
        presence = _presence(share, p, always, samples=samples, batches=batches)
        kept = len(counts) - (not unseen)
        uncertainty = rates.uncertainty
        return RowDistribution.of(
            counts[:kept],
            p[:kept],
            presence[:kept],
            ids=ids,
            uncertainty=None if uncertainty is None else uncertainty[:kept],
        )

    def _folds(self) -> FoldCounts:
        pairs, lookups, holding = self.counted
        rows, folds = np.divmod(pairs, FOLDS)
        return FoldCounts(
            rows=rows, folds=folds, lookups=lookups, holding=holding, samples=self._samples
        )


def _of_batches(ids: Sequence[Integers], folds: Sequence[int]) -> Integers:
    """[3, P] the counts of the `ids` of some batches, of which each is in a fold: a pair for each
    row of each batch. In one call, since a batch may have few ids of a table."""
    batches = np.repeat(np.arange(len(ids)), [len(one) for one in ids])
    each, lookups = np.unique(np.concatenate(ids) * len(ids) + batches, return_counts=True)
    rows, batches = np.divmod(each, len(ids))
    return np.stack([rows * FOLDS + np.asarray(folds)[batches], lookups, np.ones_like(rows)])


def of_rows(pairs: Integers) -> Integers:
    """[3, R] rows, ascending, with their lookups and batches, summed over the folds of the
    pairs."""
    return _summed(np.stack([pairs[0] // FOLDS, *pairs[1:]]))


def _found(keys: Integers, values: Integers, wanted: Integers) -> Floats:
    """The value of each wanted key, from ascending keys; 0 if the key is missing."""
    if not len(keys):
        return np.zeros(len(wanted))
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0).astype(np.float64)


def _summed(counted: Integers) -> Integers:
    """[3, P] the counts, summed by the numbers in the first row, which ascend."""
    counted = counted[:, np.argsort(counted[0], kind="stable")]
    starts = np.flatnonzero(np.diff(counted[0], prepend=-1))
    sums = np.add.reduceat(counted[1:], starts, axis=1) if len(starts) else counted[1:]
    return np.vstack([counted[:1, starts], sums])


class _Rates(NamedTuple):
    """What R classes of rows, each looked up alike, take of the samples and batches to come."""

    p: Floats
    """[R] lookups of a row per sample."""
    share: Floats
    """[R] the share of batches that hold a row."""
    unseen: float = 0.0
    """Lookups per sample of all rows together that were never looked up."""
    unseen_share: float = 0.0
    """The shares of batches that hold these rows, summed over them."""
    uncertainty: Floats | None = None

    def forecast(self, found: Forecast, batch_size: float, counted_share: float) -> _Rates:
        """As forecast, but for the share of what is to come that is what was counted."""
        later = 1 - counted_share
        return _Rates(
            p=counted_share * self.p + later * found.p,
            share=counted_share * self.share + later * batch_size * found.holding,
            unseen=later * found.unseen,
            unseen_share=later * batch_size * found.unseen_holding,
            uncertainty=later * found.uncertainty,
        )

    def discounted(
        self, given: float, lookups: Floats, seen: int, *, samples: int, batches: int
    ) -> _Rates:
        """Each of the rows that were `seen`, with `lookups` [R], gives a part of a lookup to those
        that were not."""
        unseen = given * seen / samples
        return _Rates(
            p=self.p - given / samples,
            share=self.share * (1 - given / lookups),
            unseen=unseen,
            unseen_share=unseen * samples / batches,
        )


def _presence(share: Floats, p: Floats, always: Bools, *, samples: int, batches: int) -> Floats:
    """[R] q such that 1 - (1 - q)^B is the share of batches of B samples that hold a row, which is
    looked up p times a sample; `always`: which rows are in every batch."""
    # For a row in every batch, count half a batch as without it, or presence would be 1.
    share = np.minimum(share, (batches - 0.5) / batches)
    presence = -np.expm1(np.log1p(-share) * batches / samples)
    presence = np.where(always, np.maximum(presence, np.minimum(p, 1.0)), presence)
    return np.minimum(presence, 1.0)


def _discount(counts: Integers, lookups: Floats, unseen: int) -> float:
    """The part of a lookup that each row that was seen gives to those that were not."""
    once, twice = (int(counts[lookups == times].sum()) for times in (1, 2))
    if not once:
        return 0.0
    # A row that was not seen gets no more than a row that was seen.
    return min(once / (once + 2 * twice), unseen / (unseen + int(counts.sum())))
