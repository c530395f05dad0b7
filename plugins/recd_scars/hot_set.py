"""The hot set, which is cached: the hottest rows of all tables together, as many as a rule takes.

Each rule says how many rows of each band of `MergedRows` are taken, from the hottest on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recd_plugins.api.planning import (
    Coalesce,
    Integers,
    MergedRows,
    Prices,
    RowDistribution,
    marginal_ms,
)
from recd_scars.theory import CacheSize, Memory, optimal_cache

__all__ = ["HotSet", "covering", "optimum", "within", "worth"]

TIE = 1.05
"""A replica may take this multiple of the time that its row takes to come from the table."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HotSet:
    """The rows of the paper's optimum, in bytes."""

    taken: Integers
    """[R] rows."""
    size: CacheSize
    """The optimum |C|, in bytes."""


def within(merged: MergedRows, size: float) -> Integers:
    """[R] as many rows as fit `size` bytes, from the hottest on."""
    each = merged.rows.counts * merged.width
    room = np.clip(size - (np.cumsum(each) - each), 0, each)
    taken: Integers = (room // merged.width).astype(np.int64)
    return taken


def covering(merged: MergedRows, share: float) -> Integers:
    """[R] as few rows as take this share of all lookups."""
    rows = merged.rows
    each = rows.counts * rows.p
    wanted = np.clip(share * rows.lookups - (np.cumsum(each) - each), 0, each)
    exact = np.divide(wanted, rows.p, out=np.zeros_like(wanted), where=rows.p > 0)
    # A whole number of rows may come out too large by an ulp or so.
    taken: Integers = np.minimum(np.ceil(exact * (1 - 1e-9)), rows.counts).astype(np.int64)
    return taken


def optimum(merged: MergedRows, memory: Memory) -> HotSet:
    """The |C| of least traffic per sample, of rows that are looked up at all.

    Memory counts bytes, and so does the cache: a row of r bytes is r rows of one, each with the
    row's chance to be in a batch.
    """
    seen = merged.rows.at(merged.rows.p > 0)
    width = merged.width[: len(seen.counts)]
    each = RowDistribution(counts=seen.counts * width, p=seen.p, presence=seen.presence)
    size = optimal_cache(each, memory)
    return HotSet(taken=within(merged, size.cached), size=size)


def worth(merged: MergedRows, taken: Integers, prices: Prices, coalesce: Coalesce) -> Integers:
    """[R] those of the taken rows whose replica takes no longer than their way to the table.

    The paper's cache is one device's. Copies on every rank must have their gradients reduced,
    which for a row that few ranks look up in a step takes longer than to fetch it.
    """
    if prices.cluster.world_size == 1:
        return taken
    replica = prices.replicated(merged.rows, merged.width)
    fetched = prices.row_wise(merged.rows, merged.width, coalesce)
    cheap = marginal_ms(replica, prices.cluster) <= TIE * marginal_ms(fetched, prices.cluster)
    kept: Integers = np.where(cheap, taken, 0)
    return kept
