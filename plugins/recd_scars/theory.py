"""SCARS' theory: what a batch and an epoch must move, and how much to cache of it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from recd_plugins.api import DataError, RegistryError
from recd_plugins.api.planning import RowDistribution

__all__ = ["CacheSize", "Memory", "coalesced", "cost", "epoch", "optimal_cache", "plain"]

TOLERANCE = 1e-6
"""The most by which the cost of the cache that is found may exceed the least cost, as a share of
it."""


def plain(rows: RowDistribution, *, batch_size: float, width: int) -> float:
    """Every lookup's row: b L d."""
    return batch_size * rows.lookups * width


def coalesced(rows: RowDistribution, *, batch_size: float, width: int, cached: int = 0) -> float:
    """Indices, and each row once that is not cached: b L + d sum_{e not in C} 1 - (1 - P(e))^b.

    C are the `cached` hottest rows (equation 3, without the cache; 6 with it).
    """
    if batch_size <= 0:
        raise DataError(f"a batch of {batch_size:g} samples moves nothing: ask for at least one.")
    rest = rows.part(cached, rows.num_rows)
    return batch_size * rows.lookups + width * rest.appearing(batch_size)


def epoch(
    rows: RowDistribution, *, samples: float, batch_size: float, width: int, cached: int = 0
) -> float:
    """Q / b batches, coalesced: Q L + (Q / b) d sum_{e not in C} 1 - (1 - P(e))^b."""
    batches = samples / batch_size
    return batches * coalesced(rows, batch_size=batch_size, width=width, cached=cached)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A device's memory, counted in numbers, which cached rows and the batch share."""

    capacity: float
    """M: numbers that fit, after what does not depend on batch or cache."""
    per_sample: float
    """a: numbers that one sample's activations take."""
    width: int
    """d: numbers in a row."""
    least: float = 1.0
    """The smallest batch that is of use: communication alone may be least in one of a sample."""

    def __post_init__(self) -> None:
        needed = self.least * self.per_sample
        if self.per_sample <= 0 or self.width <= 0 or self.capacity < needed:
            samples = "one sample" if self.least == 1 else f"{self.least:,.0f} samples"
            raise RegistryError(
                f"memory for {self.capacity:,.0f} numbers does not hold {samples} of "
                f"{self.per_sample:,.0f}: give more memory, or a smaller model."
            )

    def batch_size(self, cached: int) -> float:
        """b = (M - |C| d) / a: what is left for samples (equation 7). With `most_cached` rows,
        rounding does not take it below the smallest batch."""
        return max((self.capacity - cached * self.width) / self.per_sample, self.least)

    @property
    def most_cached(self) -> int:
        """The rows that leave room for the smallest batch."""
        return int((self.capacity - self.least * self.per_sample) // self.width)


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """A cache of the hottest rows, and what follows."""

    cached: int
    """|C|."""
    batch_size: float
    """b = (M - |C| d) / a."""
    per_sample: float
    """Numbers that cross the link for one sample of an epoch."""


def cost(rows: RowDistribution, memory: Memory, cached: int) -> float:
    """Numbers that cross for one sample, with as large a batch as the cache leaves room for."""
    return epoch(
        rows,
        samples=1,
        batch_size=memory.batch_size(cached),
        width=memory.width,
        cached=cached,
    )


def optimal_cache(rows: RowDistribution, memory: Memory) -> CacheSize:
    """The |C| of least cost, of any distribution; its cost is at most `TOLERANCE` too high.

    The paper halves on the sign of what one more row saves, which is right where that changes
    once; a distribution with several plateaus changes it several times. So intervals are halved,
    the most promising first, and one is dropped by a bound: no |C| within [low, high] costs less
    than the rows after `high`, in the batch that `low` leaves room for.
    """
    most = min(rows.num_rows, memory.most_cached)
    known = {cached: cost(rows, memory, cached) for cached in (0, most)}
    best = min(known, key=known.__getitem__)

    def bound(low: int, high: int) -> float:
        batch_size = memory.batch_size(low)
        return epoch(rows, samples=1, batch_size=batch_size, width=memory.width, cached=high)

    open_ = [(bound(0, most), 0, most)]
    while open_:
        least, low, high = heapq.heappop(open_)
        if least >= known[best] * (1 - TOLERANCE):
            break
        middle = (low + high) // 2
        for cached in (middle, middle + 1):
            known.setdefault(cached, cost(rows, memory, cached))
            best = min(best, cached, key=known.__getitem__)
        for part in ((low, middle), (middle + 1, high)):
            if part[0] < part[1]:
                heapq.heappush(open_, (bound(*part), *part))
    return CacheSize(
        cached=best,
        batch_size=memory.batch_size(best),
        per_sample=known[best],
    )
