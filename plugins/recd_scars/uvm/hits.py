"""The hits of a cache in front of a table in host memory: how many rows of a step are in it.

A kernel fetches a row once per step, however many lookups of however many ranks need it. So the
unit is a distinct row in a step: row e is in a step with the chance q_e = 1 - (1 - P(e))^(U b).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recd_plugins.api.planning import CacheAlgorithm, Floats, RowDistribution, appears

__all__ = ["HitCurve", "TableShards", "hit_curve"]

POINTS = 2048
"""The number of points of a curve; between them its chords are a little too low."""
TIMES = 512
"""The number of points in time at which an LRU curve is computed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TableShards:
    """The rows that a rank's kernel looks up: those that replicas do not serve."""

    counts: Floats
    """[U, R] rows of each rank in each band."""
    q: Floats
    """[R] the chance that such a row is in a step, falling."""

    @classmethod
    def of(
        cls, rows: RowDistribution, *, replicated: int, world_size: int, samples: float
    ) -> TableShards:
        """The rows of a row-wise table whose hottest are replicated, in steps of `samples` samples.

        Row e is on rank e // ceil(E / U), so one rank may have most of the hot rows. If ids are not
        known, each rank has equally many rows of a band.
        """
        known = np.empty(0, np.int64) if rows.ids is None else rows.ids[replicated:]
        bands = np.arange(len(rows.counts))
        counts = np.zeros((world_size, len(bands)))
        if len(known):
            band = np.repeat(bands, rows.counts)[replicated : replicated + len(known)]
            rank = known // -(-rows.num_rows // world_size)
            counts += np.bincount(rank * len(bands) + band, minlength=counts.size).reshape(
                counts.shape
            )
        ends = np.cumsum(rows.counts)
        first = np.maximum(ends - rows.counts, replicated + len(known))
        counts += np.maximum(ends - first, 0) / world_size
        q = appears(rows.presence, samples)
        order = np.argsort(-q, kind="stable")
        some = order[q[order] > 0]
        return cls(counts=counts[:, some], q=q[some])

    @property
    def rows(self) -> float:
        """The number of different rows in a step, over all ranks."""
        return float((self.counts @ self.q).sum())

    @property
    def accessed(self) -> float:
        """The number of rows that are ever looked up, on the rank with the most of them."""
        return float(self.counts.sum(axis=1).max(initial=0.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class HitCurve:
    """Expected hits by the size of the cache: a rising curve that bends down throughout."""

    slots: Floats
    """[n] rows for which each rank's cache has room, starting with 0."""
    hits: Floats
    """[n] rows of a step that are found in the cache, over all ranks."""

    def at(self, slots: float) -> float:
        return float(np.interp(slots, self.slots, self.hits))


def hit_curve(shards: TableShards, algorithm: CacheAlgorithm) -> HitCurve:
    """The hits of a warm cache, by its size, for rows that come independently of each other.

    lfu   a rank's h hottest rows: sum of their q_e
    lru   Che's approximation: a row stays for T steps after its last, the same T for all, so
          that h = sum 1 - (1 - q_e)^T, and hits are the sum of q_e (1 - (1 - q_e)^T)

    The result is too high for a cache that has no room for the rows of one step, which push each
    other out. fbgemm's caches are sets of 32 rows, which are treated as a single cache.
    """
    q, counts = shards.q, shards.counts
    if not len(q):
        return HitCurve(slots=np.zeros(1), hits=np.zeros(1))
    if algorithm == "lfu":
        sizes = _from_0(np.cumsum(counts, axis=1))
        hits = _from_0(np.cumsum(counts * q, axis=1))
    else:
        times = np.geomspace(1e-4, 40 / q[-1], TIMES)
        stays = np.stack([appears(q, time) for time in times], axis=1)  # [R, times]
        sizes, hits = _from_0(counts @ stays), _from_0((counts * q) @ stays)
    slots = np.unique(sizes.round(3))
    if len(slots) > POINTS:
        slots = slots[np.unique(np.linspace(0, len(slots) - 1, POINTS).astype(np.int64))]
    found = [np.interp(slots, of, those) for of, those in zip(sizes, hits, strict=True)]
    return HitCurve(slots=slots, hits=np.sum(found, axis=0))


def _from_0(rising: Floats) -> Floats:
    return np.pad(rising, ((0, 0), (1, 0)))
