"""How long hot rows stay hot: yesterday's distribution against today's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recd_plugins.errors import DataError
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


def drift(before: RowDistribution, after: RowDistribution, rows: int) -> Drift:
    """Of one table, on two days; both need the ids of as many rows as are asked for."""
    if before.num_rows != after.num_rows:
        raise DataError(
            f"had {before.num_rows:,} rows before and has {after.num_rows:,} now: these are not "
            "the same. Take profiles of one table."
        )
    old = before.hottest(rows)
    return Drift(
        rows=rows,
        then=before.coverage(rows),
        now=_share(after, old),
        best=after.coverage(rows),
        stayed=float(np.isin(old, after.hottest(rows)).mean()) if rows else 1.0,
    )


def _share(distribution: RowDistribution, ids: Integers) -> float:
    """The share of lookups that these rows take; those without an id of their own come last."""
    known = np.empty(0, np.int64) if distribution.ids is None else distribution.ids
    rank = np.full(max(int(ids.max(initial=0)), int(known.max(initial=0))) + 1, -1, np.int64)
    rank[known] = np.arange(len(known))
    run = np.searchsorted(np.cumsum(distribution.counts), rank[ids], side="right")
    p = np.where(rank[ids] < 0, distribution.p[-1], distribution.p[run])
    return float(p.sum()) / max(distribution.lookups, np.finfo(float).tiny)
