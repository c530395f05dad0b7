"""FlexShard as published: tiers by breakpoints, down the merged rows (sections 4.3 to 4.6)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from recd_flexshard.policy.offers import PER_NODE, REPLICATED, ROW_WISE, Offers
from recd_plugins.api.planning import Floats, Integers, MergedRows

__all__ = ["breakpoints"]

LEAST = 1e-12
"""The bytes that count for a row which takes none, so that its whole band fits."""


def breakpoints(
    merged: MergedRows, offers: Offers, *, tiers: Literal[2, 3], multiple: int
) -> tuple[Integers, Integers]:
    """[T] rows of each table in `replicated`, and in `per_node`, at no more memory than all rows
    at home.

    Two tiers: rows become replicated, in falling p, until they cost in memory what those before
    them saved, or until they would cost time.
    Three: `replicated` while a row saves memory (p > p* = (k - 1/U) / B); then `per_node` until
    what `replicated` saved is used up, or until `per_node` costs time.
    Each table's counts are rounded down to a multiple of the world size.
    """
    counts = merged.rows.counts
    extra = offers.memory - offers.memory[ROW_WISE]
    gain = offers.ms[ROW_WISE] - offers.ms
    if tiers == 2:
        taken = _fill(counts, extra[REPLICATED], gain[REPLICATED], 0.0)
        return _rounded(merged, taken, multiple), np.zeros(len(merged.names), np.int64)
    replicated = _rounded(merged, counts * (extra[REPLICATED] < 0), multiple)
    # `per_node` may take the rows first that rounding sent back.
    hot = _first(merged, replicated)
    left = -float(hot @ extra[REPLICATED])
    per_node = _fill(counts - hot, extra[PER_NODE], gain[PER_NODE], left)
    return replicated, _rounded(merged, per_node, multiple)


def _fill(counts: Integers, extra: Floats, gain: Floats, budget: float) -> Integers:
    """[R] rows of each band that gain time, from the first on, while the budget holds.

    Memory falls before it rises, so the last place within the budget counts.
    """
    rows = counts * (gain > 0)
    used = np.cumsum(rows * extra)
    within = np.flatnonzero(used <= budget)
    last = int(within[-1]) if len(within) else -1
    taken = np.where(np.arange(len(rows)) <= last, rows, 0)
    if last + 1 < len(rows):
        left = budget - (used[last] if last >= 0 else 0.0)
        taken[last + 1] = min(int(left // max(extra[last + 1], LEAST)), rows[last + 1])
    return taken


def _rounded(merged: MergedRows, taken: Integers, multiple: int) -> Integers:
    return merged.per_table(taken) // multiple * multiple


def _first(merged: MergedRows, rows: Integers) -> Integers:
    """[R] how many rows of each band are among the first `rows` [T] of its table."""
    taken = np.empty_like(merged.rows.counts)
    for table, count in enumerate(rows.tolist()):
        here = merged.table == table
        counts = merged.rows.counts[here]
        taken[here] = np.clip(count - (np.cumsum(counts) - counts), 0, counts)
    return taken
