"""Whole numbers without a telling name: whether they name things or count them, by how the values
of a sample lie beside each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Kind", "kind_of"]

I64 = np.ndarray[Any, np.dtype[np.int64]]

FEWEST_ROWS = 100
"""Rows below which a sample tells nothing."""
FEW = 31
"""Different values up to which it does little harm to take ids for counts."""
FEWEST_PAIRS = 30
"""Pairs of rows with the same value from which on their neighbours tell something."""
SMOOTH = 0.35
"""Of the evidence that `_smoothness` has, what counts have at least."""
SURELY_SMOOTH = 0.9
FEWEST_LAST = 30
FEWEST_LAST_SHARE = 0.005
"""Rows in the last fifth of a range from which on it ends, rather than thins out."""
MANY = 100
FILLED = 0.4
"""The share of a range whose values ids have, which counts have of small ranges alone."""
SPARSE = 0.05
"""The share of a range below which counts with a long tail have its values."""
HIGH = 1e9
"""Counts that go as far are many times rarer there than near 0."""
EVENLY = 1.5
"""How far from a straight line the values of so many hashes are at most, over the root of their
number: farther by chance once in fifty (Kolmogorov's test), as what is measured always is."""
OFFSET = 1_000
"""Where ids may begin that do not begin at 0."""
YEARS = (1900, 2100)
FEWEST_TIMES = 20
"""Of fewer different values it may be chance that each is a time of day."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What whole numbers seem to be, and why."""

    ids: bool
    why: str = ""
    """Why they are ids, or may be."""
    sure: bool = True
    """Whether the sample speaks for counts; where not, they may well be ids."""


def kind_of(values: I64, counts: I64, *, ascending: bool) -> Kind:
    """The kind of a column with these different values, each in as many rows as its count."""
    order = np.argsort(values)
    values, counts = values[order], counts[order]
    if len(values) and values[0] == -1:  # for what is not there
        values, counts = values[1:], counts[1:]
    cut_off = len(values) >= FEW and bool(counts[-1] > 5 * counts[-FEW:-1].mean())
    if cut_off:  # all that is higher stands there
        values, counts = values[:-1], counts[:-1]
    rows = int(counts.sum())
    if rows < FEWEST_ROWS or len(values) < 3:
        return Kind(ids=False)
    if values[0] < 0:
        return _below_zero(values, counts)
    low, high = int(values[0]), int(values[-1])
    repeat = rows >= 2 * len(values)
    if _are_times_of_day(values):
        return Kind(ids=True, why="times of day as hhmm, which count nothing")
    if ascending and len(values) >= FEW and repeat:
        return Kind(ids=True, why="repeats, and never falls from row to row, as ids of users or "
                    "sessions do that rows are sorted by")  # fmt: skip
    if repeat and low >= OFFSET and low > high - low and not (low >= YEARS[0] and high <= YEARS[1]):
        return Kind(ids=True, why=f"begins at {low:,}, where counts do not")
    found = _smoothness(values, counts)
    if found is not None and found < SMOOTH:
        return Kind(ids=True, why="some of its values are common and those beside them are not, "
                    "as with ids")  # fmt: skip
    spread = high - low + 1
    filled = len(values) / spread
    if found is not None:
        if found < SURELY_SMOOTH and len(values) >= MANY and filled > FILLED:
            return Kind(ids=True, why="some of its values are more common than those beside them, "
                        "and hardly any of its range lacks")  # fmt: skip
        if not cut_off and len(values) >= MANY and _ends_abruptly(values, counts):
            why = (
                "low ones are common, and its range ends abruptly, as of ids by how common they are"
            )
            return Kind(ids=False, sure=False, why=why)
        return Kind(ids=False, sure=found >= SURELY_SMOOTH or len(values) <= FEW or filled < SPARSE)
    evenly = 0.25 < (float((values * (counts / rows)).sum()) - low) / spread < 0.75
    if evenly and len(values) >= 50 and (filled > FILLED or high > HIGH):
        return Kind(ids=True, why="its values lie evenly over a range")
    return Kind(ids=False, sure=len(values) <= FEW or not evenly)


def _below_zero(values: I64, counts: I64) -> Kind:
    """Ids have numbers below 0 where they are hashes, as Java's and Spark's of 32 bits, which lie
    evenly over a wide range. What is measured is rare at the ends of one."""
    low, spread = int(values[0]), int(values[-1]) - int(values[0])
    if spread <= HIGH:
        return Kind(ids=False)
    found = _smoothness(values, counts)
    by_chance = len(values) >= MANY if found is None else found < SMOOTH
    apart = np.linspace(0, 1, len(values)) - (values - low) / spread
    even = float(np.abs(apart).max()) < EVENLY / math.sqrt(len(values))
    why = "it goes below 0 and far, as hashes do, and its values are common or rare by chance"
    return Kind(ids=True, why=why) if by_chance and even else Kind(ids=False)


def _are_times_of_day(values: I64) -> bool:
    """Whether all are 0 to 2359 as clocks have them: of other numbers two fifths are not."""
    clock = bool((values < 2400).all() and (values % 100 < 60).all())
    return clock and len(values) >= FEWEST_TIMES and int(values[-1]) >= 1_000


def _ends_abruptly(values: I64, counts: I64) -> bool:
    """Whether most rows have low values and some have the highest, about as many as have those
    before: counts without a bound thin out there."""
    low, spread = int(values[0]), int(values[-1]) - int(values[0]) + 1

    def rows(begin: float, end: float) -> int:
        first, last = np.searchsorted(values, [low + begin * spread, low + end * spread])
        return int(counts[first:last].sum())

    last, before = rows(0.9, 1), rows(0.8, 0.9)
    some = last + before >= max(FEWEST_LAST, FEWEST_LAST_SHARE * counts.sum())
    return some and last >= 0.7 * before and rows(0, 0.3) > 0.5 * int(counts.sum())


def _smoothness(values: I64, counts: I64) -> float | None:
    """How near the frequencies of values are to those of the values beside them: 1 for what is
    counted or measured, 0 where frequencies are dealt out to values by chance, as to ids; None
    where the sample does not tell.

    Pairs of rows with values beside each other, `sum n(v) n(v + 1)`, are held against those that
    chance makes, and against the fewer of two: pairs with the same value, `sum n(v) (n(v) - 1)`,
    which are as many where frequencies hardly change from value to value; and what neighbours had
    if frequencies fell from value to value.
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
