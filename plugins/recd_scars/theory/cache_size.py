"""How many rows to cache: each takes memory that the batch would use to coalesce more."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from recd_plugins.api.planning import RowDistribution
from recd_scars.theory.communication import epoch
from recd_scars.theory.memory import Memory

__all__ = ["CacheSize", "marginal", "optimal_cache"]


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """A cache of the hottest rows, and what follows."""

    cached: int
    """|C|."""
    batch_size: float
    """b = (M - |C| d) / a."""
    per_sample: float
    """Numbers that cross the link for one sample of an epoch."""
    evaluations: int
    """How often the cost was computed to find it."""


def cost(rows: RowDistribution, memory: Memory, cached: int) -> float:
    """Numbers for one sample, with as large a batch as the cache leaves room for."""
    return epoch(
        rows,
        samples=1,
        batch_size=memory.batch_size(cached),
        width=memory.width,
        cached=cached,
    )


def marginal(rows: RowDistribution, memory: Memory, cached: int) -> float:
    """What one more row saves of each sample's numbers; below 0, it costs (equations 8 to 10).

    It saves its own way to the device, and shrinks the batch, so that others travel more often.
    """
    return cost(rows, memory, cached) - cost(rows, memory, cached + 1)


def optimal_cache(rows: RowDistribution, memory: Memory, *, tolerance: float = 1e-6) -> CacheSize:
    """The |C| of least cost, of any distribution; its cost is at most `tolerance` too high.

    The paper halves on the sign of `marginal`, which is right where that changes once; a
    distribution with several plateaus changes it several times. So intervals are halved, the
    most promising first, and one is dropped by a bound: no |C| within [low, high] costs less
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
        if least >= known[best] * (1 - tolerance):
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
        evaluations=len(known),
    )
