"""An access distribution through points of a coverage curve, as papers print them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recd_plugins.api import DataError
from recd_plugins.planning.access.distribution import Floats, Integers, RowDistribution
from recd_plugins.planning.access.parametric import bands

__all__ = ["through_points"]

FIRST_COVERAGE = 1e-6
"""The share of lookups that the first row takes if only later points are known."""


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
    counts = bands(num_rows)
    ends = np.cumsum(counts)
    share = np.exp(_monotone_cubic(np.log(rows), np.log(shares), np.log(ends)))
    return RowDistribution.of(counts, lookups * _levelled(counts, np.diff(share, prepend=0.0)))


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
    """Each band's mass per row, with neighbours pooled until it falls (pool adjacent violators)."""
    pooled: list[tuple[int, float, int]] = []
    for rows, share in zip(counts.tolist(), mass.tolist(), strict=True):
        joined = 1
        while pooled and share * pooled[-1][0] > pooled[-1][1] * rows:
            before = pooled.pop()
            rows, share, joined = rows + before[0], share + before[1], joined + before[2]
        pooled.append((rows, share, joined))
    level = np.array([share / rows for rows, share, _ in pooled])
    return np.repeat(level, [joined for _, _, joined in pooled])
