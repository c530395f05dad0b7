"""Whether whole numbers in a column without a telling name are ids or counts, judged by how the
values of a sample lie beside each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["NumberKind", "kind_of"]

I64 = np.ndarray[Any, np.dtype[np.int64]]

FEWEST_ROWS = 100
"""With fewer rows, a sample shows nothing."""
FEW = 31
"""With up to this many different values, it does little harm to take ids for counts."""
FEWEST_PAIRS = 30
"""From this many pairs of rows with the same value on, their neighbours show something."""
SMOOTH = 0.35
"""The least `_smoothness` of counts."""
SURELY_SMOOTH = 0.9
FEWEST_LAST = 30
FEWEST_LAST_SHARE = 0.005
"""The least number and share of rows in the last fifth of a range that show whether the range ends
abruptly or thins out."""
MANY = 100
FILLED = 0.4
"""Ids have more than this share of the values in their range; counts do only in small ranges."""
SPARSE = 0.05
"""The share of a range below which its values may be counts with a long tail."""
HIGH = 1e9
"""Counts that reach this far are many times rarer there than near 0."""
EVENLY = 1.5
"""How far from a straight line the values of hashes lie at most, over the root of their number: one
set of hashes in fifty lies farther by chance (Kolmogorov's test), measurements always do."""
OFFSET = 1_000
"""The least value at which ids may begin that do not begin at 0."""
YEARS = (1900, 2100)
FEWEST_TIMES = 20
"""With fewer different values, it may be chance that all are times of day."""


@dataclass(frozen=True, kw_only=True)
class NumberKind:
    """What whole numbers seem to be, and why."""

    ids: bool
    why: str = ""
    """Why they are ids, or may be."""
    sure: bool = True
    """Whether the sample speaks for counts; if not, the numbers may well be ids."""


def kind_of(values: I64, counts: I64, *, ascending: bool) -> NumberKind:
    """The kind of a column with these different values; `counts` has the number of rows of each."""
    order = np.argsort(values)
    values, counts = values[order], counts[order]
    if len(values) and values[0] == -1:  # stands for a missing value
        values, counts = values[1:], counts[1:]
    cut_off = len(values) >= FEW and bool(counts[-1] > 5 * counts[-FEW:-1].mean())
    if cut_off:  # the last value stands for all higher ones
        values, counts = values[:-1], counts[:-1]
    rows = int(counts.sum())
    if rows < FEWEST_ROWS or len(values) < 3:
        return NumberKind(ids=False)
    if values[0] < 0:
        return _below_zero(values, counts)
    low, high = int(values[0]), int(values[-1])
    repeat = rows >= 2 * len(values)
    if _are_times_of_day(values):
        return NumberKind(ids=True, why="times of day as hhmm, which count nothing")
    if ascending and len(values) >= FEW and repeat:
        why = (
            "repeats, and never falls from row to row, like ids of users or sessions by which rows "
            "are sorted"
        )
        return NumberKind(ids=True, why=why)
    if repeat and low >= OFFSET and low > high - low and not (low >= YEARS[0] and high <= YEARS[1]):
        return NumberKind(ids=True, why=f"begins at {low:,}, where counts do not")
    found = _smoothness(values, counts)
    if found is not None and found < SMOOTH:
        return NumberKind(
            ids=True, why="some of its values are common and those beside them are not, as with ids"
        )
    spread = high - low + 1
    filled = len(values) / spread
    if found is not None:
        if found < SURELY_SMOOTH and len(values) >= MANY and filled > FILLED:
            why = (
                "some of its values are more common than those beside them, and hardly any of its "
                "range is missing"
            )
            return NumberKind(ids=True, why=why)
        if not cut_off and len(values) >= MANY and _ends_abruptly(values, counts):
            why = (
                "low ones are common, and its range ends abruptly, like that of ids numbered by "
                "how common they are"
            )
            return NumberKind(ids=False, sure=False, why=why)
        return NumberKind(
            ids=False, sure=found >= SURELY_SMOOTH or len(values) <= FEW or filled < SPARSE
        )
    evenly = 0.25 < (float((values * (counts / rows)).sum()) - low) / spread < 0.75
    if evenly and len(values) >= 50 and (filled > FILLED or high > HIGH):
        return NumberKind(ids=True, why="its values lie evenly over a range")
    return NumberKind(ids=False, sure=len(values) <= FEW or not evenly)


def _below_zero(values: I64, counts: I64) -> NumberKind:
    """The kind of numbers of which some are below 0.

    Such ids are hashes, for example the 32-bit hashes of Java and Spark, which lie evenly over a
    wide range. Measurements are rare at the ends of their range.
    """
    low, spread = int(values[0]), int(values[-1]) - int(values[0])
    if spread <= HIGH:
        return NumberKind(ids=False)
    found = _smoothness(values, counts)
    by_chance = len(values) >= MANY if found is None else found < SMOOTH
    apart = np.linspace(0, 1, len(values)) - (values - low) / spread
    even = float(np.abs(apart).max()) < EVENLY / math.sqrt(len(values))
    why = "it goes below 0 and far, as hashes do, and its values are common or rare by chance"
    return NumberKind(ids=True, why=why) if by_chance and even else NumberKind(ids=False)


def _are_times_of_day(values: I64) -> bool:
    """Whether all values are times from 0 to 2359; of other numbers, two fifths are not."""
    clock = bool((values < 2400).all() and (values % 100 < 60).all())
    return clock and len(values) >= FEWEST_TIMES and int(values[-1]) >= 1_000


def _ends_abruptly(values: I64, counts: I64) -> bool:
    """Whether most rows have low values, while the highest values have about as many rows as those
    just below: counts without a bound thin out there."""
    low, spread = int(values[0]), int(values[-1]) - int(values[0]) + 1

    def rows(begin: float, end: float) -> int:
        first, last = np.searchsorted(values, [low + begin * spread, low + end * spread])
        return int(counts[first:last].sum())

    last, before = rows(0.9, 1), rows(0.8, 0.9)
    some = last + before >= max(FEWEST_LAST, FEWEST_LAST_SHARE * counts.sum())
    return some and last >= 0.7 * before and rows(0, 0.3) > 0.5 * int(counts.sum())


def _smoothness(values: I64, counts: I64) -> float | None:
    """How near the frequencies of values are to those of the values beside them: 1 for counts and
    measurements, 0 if values have frequencies by chance, as ids do; None if the sample does not
    show it.

    The number of pairs of rows with neighbouring values, `sum n(v) n(v + 1)`, is placed between
    the number expected by chance and the smaller of two others: the number of pairs with the same
    value, `sum n(v) (n(v) - 1)`, which is as large if frequencies hardly change from value to
    value; and the number of neighbouring pairs if frequencies fell from value to value.
    """
    counts, values = counts[values != 0].astype(np.float64), values[values != 0]
    if len(values) < 3:
        return None
    steps = np.diff(values)
    unit = int(np.gcd.reduce(steps))
    same = float((counts * (counts - 1)).sum())
    if same < 2 * FEWEST_PAIRS:
        return None
    beside = float((counts[1:] * counts[:-1])[steps == unit].sum())
    falling = np.sort(counts)[::-1]
    most = min(same, float((falling[1:] * falling[:-1]).sum()))
    slots = (int(values[-1]) - int(values[0])) / unit + 1
    chance = float(counts.sum() ** 2 - (counts**2).sum()) / slots
    if most - chance < 0.1 * most:
        return None
    return (beside - chance) / (most - chance)
