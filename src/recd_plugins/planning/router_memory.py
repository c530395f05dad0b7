"""The memory by which a rank finds the rows that have replicas: bits of every row of a table; of
huge ones, slots for those rows alone."""

from __future__ import annotations

from recd_plugins.sparse.rows.slot_sizes import MOST_IN_SLOTS, SLOT_BYTES

__all__ = ["is_listed", "router_bytes"]

SMALL = 1 << 30
"""Bytes of a table's bits that are never too much: an id takes half as long again, or three times
as long, by slots."""
BITS_PER_ROW = 64 / 48 * (1 + 1 / 1024)
"""A word for 48 rows, and one for as many words: `tiers.router.RankedBitmap`."""
SLOT_AND_NUMBER = 1.5 * SLOT_BYTES
"""Bytes for each row that has a replica, of a table whose rows are in slots."""


def is_listed(num_rows: int, count: int) -> bool:
    """Whether `count` rows that have replicas take less memory than bits of all rows of a huge
    table."""
    bits = num_rows * BITS_PER_ROW / 8
    return bits > max(SMALL, SLOT_AND_NUMBER * count) and count <= MOST_IN_SLOTS


def router_bytes(num_rows: int, count: int) -> float:
    """Bytes for a table of which `count` rows have replicas. These have bits of their own, which
    say in which tier; and others, where they are in slots."""
    if is_listed(num_rows, count):
        return (SLOT_AND_NUMBER + 2 * BITS_PER_ROW / 8) * count
    return (num_rows + count) * BITS_PER_ROW / 8
