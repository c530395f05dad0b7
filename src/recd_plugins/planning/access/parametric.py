"""Access distributions by formula, for tables of any size: Zipf, half-normal, through points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.planning.access.distribution import Floats, Integers, RowDistribution

__all__ = ["exponential", "half_normal", "through_points", "uniform", "zipf"]

SINGLE = 1024
"""The number of hottest rows that are each a run of their own."""
GROWTH = 1 / 512
"""The later runs grow with their rank by this share, so that p hardly changes within a run."""
FIRST_COVERAGE = 1e-6
"""The share of lookups that the first row takes if only later points are known."""


def uniform(num_rows: int, lookups: float) -> RowDistribution:
    """p = L / E for all rows."""
    return RowDistribution.of([num_rows], [lookups / num_rows])


def zipf(num_rows: int, lookups: float, exponent: float = 1.0) -> RowDistribution:
    """p of the row of rank i (from 1) is in proportion to i^-exponent, 0 or more."""
    if not 0 <= exponent < math.inf:
        raise DataError(f"rows: Zipf's exponent is 0 or more, not {exponent}.")
    return _by_density(num_rows, lookups, lambda rank: rank**-exponent)


def half_normal(num_rows: int, lookups: float, scale: float = 0.1) -> RowDistribution:
    """p is in proportion to exp(-(i / s)^2 / 2), s = scale * num_rows."""
    deviation = _length(scale, num_rows)
    return _by_density(num_rows, lookups, lambda rank: np.exp(-0.5 * (rank / deviation) ** 2))


def exponential(num_rows: int, lookups: float, scale: float = 0.1) -> RowDistribution:
    """p is in proportion to exp(-i / s), s = scale * num_rows."""
    length = _length(scale, num_rows)
    return _by_density(num_rows, lookups, lambda rank: np.exp(-rank / length))


def through_points(
    num_rows: int, lookups: float, points: Sequence[tuple[int, float]]
) -> RowDistribution:
    """A distribution through known (rows, coverage) points, such as those of tables in the
    literature.

    Between them, and from (1, 1e-6) to (num_rows, 1), the logarithm of coverage is a monotone
    cubic (Fritsch-Carlson) in the logarithm of rows; where p would rise, it is levelled.
    """
    known = sorted({(1, FIRST_COVERAGE), *points, (num_rows, 1.0)})
    rows = np.array([row for row, _ in known], float)
    shares = np.array([share for _, share in known], float)
    if np.any(np.diff(rows) <= 0) or np.any(np.diff(shares) <= 0) or shares[-1] > 1:
        raise DataError(
            f"rows: points must rise in rows and in coverage from (1, {FIRST_COVERAGE:g}) to "
            f"({num_rows}, 1), but are {known}."
        )
    counts = _runs(num_rows)
    ends = np.cumsum(counts)
    share = np.exp(_monotone_cubic(np.log(rows), np.log(shares), np.log(ends)))
    return RowDistribution.of(counts, lookups * _levelled(counts, np.diff(share, prepend=0.0)))


def _length(scale: float, num_rows: int) -> float:
    """A share of the rows, as a number of rows."""
    if not 0 < scale < math.inf:
        raise DataError(f"rows: a scale is more than 0, not {scale}.")
    return scale * num_rows


def _by_density(
    num_rows: int, lookups: float, density: Callable[[Floats], Floats]
) -> RowDistribution:
    counts = _runs(num_rows)
    ends = np.cumsum(counts)
    weight = density(ends - (counts - 1) / 2)  # at the middle of each run
    return RowDistribution.of(counts, lookups * weight / (counts @ weight))


def _runs(num_rows: int) -> Integers:
    """The number of rows of each run: one at first, later more with the rank."""
    if num_rows < 1:
        raise DataError(f"rows: a table has one row or more, not {num_rows}.")
    single = min(num_rows, SINGLE)
    steps = int(np.ceil(np.log(max(num_rows / single, 1.0)) / np.log1p(GROWTH)))
    ends = np.rint(single * (1 + GROWTH) ** np.arange(1, steps + 1)).astype(np.int64)
    ends = np.unique(np.concatenate([np.arange(1, single + 1), ends, [num_rows]]))
    return np.diff(ends[ends <= num_rows], prepend=0)


def _monotone_cubic(x: Floats, y: Floats, at: Floats) -> Floats:
    """Fritsch and Carlson's interpolation (as PCHIP): harmonic means of the neighbouring slopes."""
    width, slope = np.diff(x), np.diff(y) / np.diff(x)
    tangent = np.empty_like(y)
    left, right = 2 * width[1:] + width[:-1], width[1:] + 2 * width[:-1]
    tangent[1:-1] = (left + right) / (left / slope[:-1] + right / slope[1:])
    tangent[0] = _end_tangent(width, slope)
    tangent[-1] = _end_tangent(width[::-1], slope[::-1])
    piece = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    h, t = width[piece], (at - x[piece]) / width[piece]
    value: Floats = (
        (1 + 2 * t) * (1 - t) ** 2 * y[piece]
        + t * (1 - t) ** 2 * h * tangent[piece]
        + t**2 * (3 - 2 * t) * y[piece + 1]
        + t**2 * (t - 1) * h * tangent[piece + 1]
    )
    return value


def _end_tangent(width: Floats, slope: Floats) -> float:
    """The three-point formula, limited to the shape of the data (slopes are positive here)."""
    if len(slope) == 1:
        return float(slope[0])
    tangent = ((2 * width[0] + width[1]) * slope[0] - width[0] * slope[1]) / (width[0] + width[1])
    return float(np.clip(tangent, 0.0, 3 * slope[0]))


def _levelled(counts: Integers, mass: Floats) -> Floats:
    """Each run's mass per row, with neighbours pooled until it falls (pool adjacent violators)."""
    pooled: list[tuple[int, float, int]] = []
    for rows, share in zip(counts.tolist(), mass.tolist(), strict=True):
        runs = 1
        while pooled and share * pooled[-1][0] > pooled[-1][1] * rows:
            before = pooled.pop()
            rows, share, runs = rows + before[0], share + before[1], runs + before[2]
        pooled.append((rows, share, runs))
    level = np.array([share / rows for rows, share, _ in pooled])
    return np.repeat(level, [runs for _, _, runs in pooled])
