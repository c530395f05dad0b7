"""The forecast of coming batches from counted ones: rates in held-out folds, and how certain they
are.

The hottest rows of a sample look hotter than they are, since luck in the sample selects them. So
batches are counted in folds, and a row's lookups in each fold are compared with those in all other
folds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recd_plugins.planning.access.distribution import Floats, Integers

__all__ = ["FOLDS", "FoldCounts", "Forecast", "forecast"]

FOLDS = 16
"""The number of parts of the counted batches, each held out in turn."""
STUDENT = (
    0.0,
    12.7,
    4.3,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.2,
    2.18,
    2.16,
    2.14,
    2.13,
)
"""Student's t at 97.5%, by degrees of freedom: folds less one."""
LEAST = 0.005
"""How far off a forecast may be, even if all folds agree."""
STRETCHES = 4
"""The parts of the first batches that are compared with each other, as the folds are: a run reports
what its later batches had in all, so that what changes back within a part averages out."""
EXACT = 16
"""Rows with this many lookups or fewer have a class for each number of lookups."""
WIDTH = 1.1
"""The most lookups of a further class, divided by its least."""
ENOUGH = 50
"""The held-out lookups that a class needs to have a rate of its own, which is then known to within
a seventh."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldCounts:
    """P pairs of a row and a fold that looked it up."""

    rows: Integers
    """[P] ascending."""
    folds: Integers
    """[P]."""
    lookups: Integers
    """[P]."""
    holding: Integers
    """[P] batches of the fold that contain the row."""
    samples: Integers
    """[FOLDS] the samples of each fold; 0 if nothing was counted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """The expected lookups of rows, by how often they were looked up before."""

    p: Floats
    """[R] lookups of a row per sample."""
    holding: Floats
    """[R] batches that contain a row, per sample."""
    unseen: float
    """Lookups per sample of all rows together that were never looked up."""
    unseen_holding: float
    """Batches that contain one of these rows, per sample, summed over the rows."""
    uncertainty: Floats
    """[R + 1] how far off the share of lookups may be that the rows up to each band take; rows that
    were not seen come last."""


def forecast(
    found: FoldCounts, bands: Integers, num_rows: int, *, in_order: bool = False
) -> Forecast | None:
    """The forecast for rows that were looked up `bands` [R] times, falling; None if there is a
    single fold or nothing was looked up.

    Rows with r lookups in all folds but one had, in that one, g(r) times what r promised, over all
    folds (deleted estimation, Jelinek and Mercer 1985). A row gets the mean of this rate over the
    folds, each with its r in the others. So all rows together have as many lookups as were counted.
    But rows not seen yet get a little less, because the others lack a fold (`_Folds.unseen`); the
    difference goes to rows that were hardly seen. Batches that contain a row are treated in the
    same way.

    If only the first batches are counted, `in_order`, they say less about later ones. Those may be
    as far from the mean as one fold is from the others, or one of the `STRETCHES` if these are more
    alike; and further by as much as the second half of the folds already is from the first
    (`_Folds.moved`).
    """
    if np.count_nonzero(found.samples) < 2 or not len(found.rows):
        return None
    folds = _Folds.of(found, bands, num_rows)
    p, unseen = folds.rates(found.lookups)
    holding, unseen_holding = folds.rates(found.holding)
    return Forecast(
        p=p,
        holding=holding,
        unseen=unseen,
        unseen_holding=unseen_holding,
        uncertainty=folds.uncertainty(in_order),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Folds:
    """P pairs of S rows and K folds, with C classes of rows by their lookups."""

    pairs: FoldCounts
    num_rows: int
    bands: Integers
    """[R] the number of lookups that the rows of a band have."""
    counts: Integers
    """[R] the number of such rows."""
    band: Integers
    """[S] the band of a row."""
    starts: Integers
    """[S] the first pair of each row."""
    size: Integers
    """[S] the number of folds that looked the row up."""
    fold: Integers
    """[P] the fold of the pair, counted among the folds that were used."""
    weight: Floats
    """[K] the samples of a fold, divided by those of all others."""
    classes: int
    """C."""
    whole: Integers
    """[S] the class of a row, by all of its lookups."""
    others: Integers
    """[P] the class of the pair's row, by its lookups in all other folds; 0 if there are none."""

    @classmethod
    def of(cls, pairs: FoldCounts, bands: Integers, num_rows: int) -> _Folds:
        used = np.flatnonzero(pairs.samples)
        samples = pairs.samples[used].astype(np.float64)
        starts = np.flatnonzero(np.diff(pairs.rows, prepend=-1))
        size = np.diff(starts, append=len(pairs.rows))
        total = np.add.reduceat(pairs.lookups, starts)
        least = _classes(int(total.max()))
        band = np.searchsorted(-bands, -total)
        whole, others = (
            np.searchsorted(least, one, side="right") - 1
            for one in (total, np.repeat(total, size) - pairs.lookups)
        )
        return cls(
            pairs=pairs,
            num_rows=num_rows,
            bands=bands,
            counts=np.bincount(band, minlength=len(bands)),
            band=band,
            starts=starts,
            size=size,
            fold=np.searchsorted(used, pairs.folds),
            weight=samples / (samples.sum() - samples),
            classes=len(least),
            whole=whole,
            others=others,
        )

    def rates(self, counted: Integers) -> tuple[Floats, float]:
        """[R] the rate per row and sample, and the rate of all unseen rows together, of what is
        `counted` [P]: lookups, or batches that have them."""
        samples = float(self.pairs.samples.sum())
        total = np.add.reduceat(counted, self.starts)
        left = np.repeat(total, self.size) - counted
        weights = self.weight[self.fold]
        without = self.weight.sum() - np.add.reduceat(weights, self.starts)
        ratio = self._ratios(counted, left * weights, total * without)
        rate = ratio[self.whole] * total * without
        rate += np.add.reduceat(ratio[self.others] * left * weights, self.starts)
        p = np.bincount(self.band, weights=rate) / self.counts / samples
        every = float(total.sum())
        unseen = self.unseen(total) if self.num_rows > len(total) else 0.0
        few = self.counts / self.bands
        missing = (every - unseen) / samples - self.counts @ p
        p = np.maximum(p + missing * few / (self.counts * few.sum()), 0.0)
        p *= (every - unseen) / samples / max(float(self.counts @ p), np.finfo(float).tiny)
        return p, unseen / samples

    def unseen(self, total: Integers) -> float:
        """The lookups that unseen rows will have in as many samples; `total` [S] is the number of
        lookups of each seen row.

        The rows of only one fold are those that the other folds had not seen; the rows of two folds
        are those that are missing without a second fold. So the unseen share is known after K - 1
        and K - 2 folds, and is extrapolated to K as a power of the samples.
        """
        folds = len(self.weight)
        once, twice = (float(total[self.size == number].sum()) for number in (1, 2))
        if not once or folds < 3:
            return once * (folds - 1) / folds
        power = np.log1p(twice / once / (folds - 1)) / np.log((folds - 1) / (folds - 2))
        found: float = once * ((folds - 1) / folds) ** power
        return found

    def uncertainty(self, in_order: bool) -> Floats:
        """[R + 1] how far off the share may be that the rows up to each band take: Student's t
        times the deviation of its mean over the held-out folds, or of one more fold or stretch if
        these are the first batches, `in_order`; combined with `LEAST`."""
        shape = (self.classes, len(self.weight))

        def summed(at: Integers, weights: Integers | None = None) -> Floats:
            flat = np.bincount(at * shape[1] + self.fold, weights, shape[0] * shape[1])
            return flat.reshape(shape).astype(np.float64)

        lookups = summed(self.others, self.pairs.lookups)
        rows = summed(self.others) - summed(np.repeat(self.whole, self.size))
        rows += np.bincount(self.whole, minlength=self.classes)[:, None]
        rows[0] += self.num_rows - len(self.size)
        ends = np.append(self.counts.cumsum(), self.num_rows)
        shares = []
        for each, of_fold in zip(rows.T, lookups.T, strict=True):
            if of_fold.sum():
                taken = np.concatenate([[0.0], np.cumsum(of_fold[::-1]) / of_fold.sum()])
                shares.append(
                    np.interp(ends, np.concatenate([[0.0], np.cumsum(each[::-1])]), taken)
                )
        if len(shares) < 2:
            return np.ones(len(ends))
        share, wide = np.mean(shares, axis=0), _deviations(np.array(shares), more=in_order)
        if in_order and len(shares) >= 2 * STRETCHES:  # in the order of the folds
            stretches = [part.mean(0) for part in np.array_split(np.array(shares), STRETCHES)]
            wide = np.minimum(wide, _deviations(np.array(stretches), more=True))
        least = np.minimum(LEAST, np.minimum(share, 1 - share))
        whole: Floats = np.hypot(wide, least) + (self.moved(ends) if in_order else 0.0)
        return np.minimum(whole, 1.0)

    def moved(self, ends: Integers) -> Floats:
        """[N] the share of lookups that the `ends` [N] hottest rows lose from one half of the folds
        to the other if these are the first and the second half, beyond what they lose if each half
        has every other fold."""
        rows, lookups = np.repeat(np.arange(len(self.size)), self.size), self.pairs.lookups
        folds, fold = np.unique(self.fold, return_inverse=True)  # those that have lookups

        def kept(known: NDArray[np.bool_]) -> Floats:
            """The share that rows take in the other folds, hottest first by those `known` [P]."""
            here, there = (
                np.bincount(rows[one], lookups[one], len(self.size)) for one in (known, ~known)
            )
            number, by = np.unique(-here, return_inverse=True)
            each, taken = np.bincount(by), np.bincount(by, there)
            if not number[-1]:  # the rows that nobody looked up are among those of no lookup
                each[-1] += self.num_rows - len(self.size)
            every = max(float(taken.sum()), np.finfo(float).tiny)
            at, share = (np.append(0.0, one.cumsum()) for one in (each, taken / every))
            found: Floats = np.interp(ends, at, share)
            return found

        if len(folds) < 4:
            return np.zeros(len(ends))
        even = fold % 2 == 0
        # Both ways round, since the even folds may be of another kind than the odd ones.
        lost: Floats = (kept(even) + kept(~even)) / 2 - kept(fold < len(folds) // 2)
        return np.maximum(lost, 0.0)

    def _ratios(self, counted: Integers, left: Floats, promised: Floats) -> Floats:
        """[C] g of each class, with neighbours joined until they had `ENOUGH`; 0 for unseen rows.

        `left` [P] is what the other folds promised to a fold that looked the row up; `promised` [S]
        is what all folds promised to those that did not.
        """
        had = np.bincount(self.others, counted, self.classes)
        expected = np.bincount(self.others, left, self.classes)
        expected += np.bincount(self.whole, promised, self.classes)
        ratio = np.zeros(self.classes)
        first, ends = 1, np.cumsum(had)
        while first < self.classes:
            last = int(np.searchsorted(ends, ends[first - 1] + ENOUGH)) + 1
            if last >= self.classes or ends[-1] - ends[last - 1] < ENOUGH:
                last = self.classes
            over = expected[first:last].sum()
            ratio[first:last] = had[first:last].sum() / over if over else 0.0
            first = last
        return ratio


def _deviations(shares: Floats, *, more: bool) -> Floats:
    """[N] Student's t times the deviation of the mean of `shares` [K, N], or of one `more`."""
    deviation = np.std(shares, axis=0, ddof=1) * np.sqrt(1 / len(shares) + more)
    found: Floats = STUDENT[min(len(shares), len(STUDENT)) - 1] * deviation
    return found


def _classes(most: int) -> Integers:
    """[C] the least lookups of each class, from 0 on."""
    steps = max(0, int(np.ceil(np.log(max(most, 1) / EXACT) / np.log(WIDTH))))
    wider = np.rint(EXACT * WIDTH ** np.arange(1, steps + 1)).astype(np.int64)
    return np.unique(np.concatenate([np.arange(EXACT + 1), wider]))
