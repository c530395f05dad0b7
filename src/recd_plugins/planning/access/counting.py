"""The counter of each table: exact for the smallest ones, and a sketch for those beyond a bound."""

from __future__ import annotations

from collections.abc import Mapping

from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.access.row_counter import RowCounter
from recd_plugins.planning.access.row_sketch import RowSketch

__all__ = ["EXACT_ROWS", "Counter", "counters", "distribution"]

Counter = RowCounter | RowSketch

EXACT_ROWS = 1 << 26
"""The most rows of all tables that are counted exactly: 24 bytes for each row seen, so 1.6 GB."""
COUNTERS = 1 << 22
"""Counters of a sketch: 64 MB, with counts too low by at most 1 / 2^22 of all lookups."""
ALL_COUNTERS = 1 << 26
"""Counters of all sketches, which share them if there are more than 16 sketches: 1 GB."""


def counters(num_rows: Mapping[str, int], *, exact_rows: int = EXACT_ROWS) -> dict[str, Counter]:
    """A counter for each table. The smallest tables are counted exactly, as long as their rows are
    no more than `exact_rows` in all; the larger ones are sketched."""
    left, exact = exact_rows, set()
    for name in sorted(num_rows, key=lambda name: num_rows[name]):
        left -= num_rows[name]
        if left < 0:
            break
        exact.add(name)
    capacity = min(COUNTERS, ALL_COUNTERS // max(len(num_rows) - len(exact), 1))
    return {
        name: RowCounter(rows) if name in exact else RowSketch(capacity, rows)
        for name, rows in num_rows.items()
    }


def distribution(
    counter: Counter,
    num_rows: int,
    *,
    sample: bool,
    counted_share: float = 0.0,
    in_order: bool = False,
) -> RowDistribution:
    """The counts of a table; for a `sample`, a forecast of the lookups (`RowCounter.distribution`).
    A sketch that has given up its folds leaves lookups to the rows that it lacks anyway."""
    if isinstance(counter, RowSketch):
        if counter.exact is None:
            return counter.distribution(num_rows)
        counter = counter.exact
    return counter.distribution(sample=sample, counted_share=counted_share, in_order=in_order)
