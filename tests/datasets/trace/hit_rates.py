"""What an LRU cache hits of a trace, by its profile."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recd_dlrm.datasets.trace.stack_distance import StackProfile


def hit_rates(profile: StackProfile, sizes: ArrayLike) -> NDArray[np.float64]:
    """The share of accesses that an LRU cache of a size hits: the sum of p[d], 0 < d <= size."""
    rates: NDArray[np.float64] = np.cumsum(profile.probabilities) - profile.probabilities[0]
    return rates[np.searchsorted(profile.distances, np.asarray(sizes), side="right") - 1]
