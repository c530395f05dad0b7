"""A counter for each table, within one bound of memory for all: exact ones, or sketches."""

from __future__ import annotations

from collections.abc import Mapping

from recd_plugins.planning.access.counting import RowCounter
from recd_plugins.planning.access.sketch import RowSketch
from recd_plugins.planning.rows import RowDistribution

__all__ = ["COUNTERS", "EXACT_ROWS", "Counter", "counters", "distribution"]

Counter = RowCounter | RowSketch

EXACT_ROWS = 1 << 27
"""Of all tables together: exact counts take 12 bytes a row, so 1.6 GB for so many."""
COUNTERS = 1 << 22
"""Of a sketch, in their place: 64 MB, and counts too low by 1 / 2^22 of all lookups at most."""
ALL_COUNTERS = 1 << 26
"""Of all sketches together, which share them once they are more than 16: 1 GB."""


def counters(num_rows: Mapping[str, int], *, exact_rows: int = EXACT_ROWS) -> dict[str, Counter]:
    """By table: exact from the smallest on, while their rows are no more than `exact_rows` in all;
    the larger ones are sketched."""
    left, exact = exact_rows, set()
    for name in sorted(num_rows, key=lambda name: num_rows[name]):
        left -= num_rows[name]
        if left < 0:
            break
        exact.add(name)
    capacity = min(COUNTERS, ALL_COUNTERS // max(len(num_rows) - len(exact), 1))
    return {
        name: RowCounter(rows) if name in exact else RowSketch(capacity)
        for name, rows in num_rows.items()
    }


def distribution(counter: Counter, num_rows: int, *, sample: bool) -> RowDistribution:
    """What was counted of a table; `sample` leaves lookups to the rows that an exact count lacks,
    as a sketch does anyway."""
    if isinstance(counter, RowSketch):
        return counter.distribution(num_rows)
    return counter.distribution(sample=sample)
