"""Access distributions by formula, for tables of any size: Zipf, half-normal, exponential."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.planning.access.distribution import Floats, Integers, RowDistribution

__all__ = ["bands", "exponential", "half_normal", "uniform", "zipf"]

SINGLE = 1024
"""The number of hottest rows that are each a band of their own."""
GROWTH = 1 / 512
"""The later bands grow by this share of the hotter rows, so that p hardly changes within a band."""


def uniform(num_rows: int, lookups: float) -> RowDistribution:
    """p = L / E for all rows."""
    return RowDistribution.of([num_rows], [lookups / num_rows])


def zipf(num_rows: int, lookups: float, exponent: float = 1.0) -> RowDistribution:
    """p of the i-th hottest row (from 1) is in proportion to i^-exponent, 0 or more."""
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


def _length(scale: float, num_rows: int) -> float:
    """A share of the rows, as a number of rows."""
    if not 0 < scale < math.inf:
        raise DataError(f"rows: a scale is more than 0, not {scale}.")
    return scale * num_rows


def _by_density(
    num_rows: int, lookups: float, density: Callable[[Floats], Floats]
) -> RowDistribution:
    counts = bands(num_rows)
    ends = np.cumsum(counts)
    weight = density(ends - (counts - 1) / 2)  # at the middle of each band
    return RowDistribution.of(counts, lookups * weight / (counts @ weight))


def bands(num_rows: int) -> Integers:
    """The number of rows of each band: one of the hottest, later more and more."""
    if num_rows < 1:
        raise DataError(f"rows: a table has one row or more, not {num_rows}.")
    single = min(num_rows, SINGLE)
    steps = int(np.ceil(np.log(max(num_rows / single, 1.0)) / np.log1p(GROWTH)))
    ends = np.rint(single * (1 + GROWTH) ** np.arange(1, steps + 1)).astype(np.int64)
    ends = np.unique(np.concatenate([np.arange(1, single + 1), ends, [num_rows]]))
    return np.diff(ends[ends <= num_rows], prepend=0)
