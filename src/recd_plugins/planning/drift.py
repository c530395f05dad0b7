"""How long hot rows stay hot: yesterday's distribution against today's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recd_plugins.planning.rows import Integers, RowDistribution

__all__ = ["Drift", "drift"]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What the `rows` hottest rows of yesterday are worth today."""

    rows: int
    then: float
    """The share of yesterday's lookups that they took."""
    now: float
    """The share of today's lookups that they take."""
    best: float
    """The share that today's own hottest rows take: what re-tiering would give."""
    stayed: float
    """The share of them that are among today's hottest."""

    @property
    def lost(self) -> float:
        """The share of today's lookups that yesterday's choice misses."""
        return self.best - self.now


def drift(before: RowDistribution, after: RowDistribution, rows: int) -> Drift:
    """Both need the ids of their rows, `before` of as many as are asked for."""
    old = before.hottest(rows)
    known = after.hottest(0 if after.ids is None else len(after.ids))
    place = np.full(max(int(old.max(initial=-1)), int(known.max(initial=-1))) + 1, -1, np.int64)
    place[known] = np.arange(len(known))
    ranks = place[old]
    return Drift(
        rows=rows,
        then=before.coverage(rows),
        now=_share(after, ranks[ranks >= 0]),
        best=after.coverage(rows),
        stayed=float(np.mean((ranks >= 0) & (ranks < rows))) if rows else 1.0,
    )


def _share(distribution: RowDistribution, ranks: Integers) -> float:
    """The share of lookups that the rows of these ranks take."""
    run = np.searchsorted(np.cumsum(distribution.counts), ranks, side="right")
    return float(distribution.p[run].sum()) / max(distribution.lookups, np.finfo(float).tiny)
