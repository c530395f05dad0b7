"""The memory in which a rank finds the rows that have replicas. On a CPU these are bits for every
row of a table, or in huge tables slots for those rows alone; a GPU searches for them in a list."""

from __future__ import annotations

from recd_plugins.sparse.rows.slot_sizes import MOST_IN_SLOTS, SLOT_BYTES

__all__ = ["is_listed", "router_bytes"]

SMALL = 1 << 30
"""Bits that take no more bytes than this are never too many: by slots an id takes half as long
again, or three times as long."""
BITS_PER_ROW = 64 / 48 * (1 + 1 / 1024)
"""A word for 48 rows, and one for as many words: `tiers.routing.ranked_bitmap`."""
SLOT_AND_NUMBER = 1.5 * SLOT_BYTES
"""Bytes for each row that has a replica, of a table whose rows are in slots."""
NUMBER = 8
"""Bytes for each row that has a replica, in the list of a GPU: `tiers.routing.sorted_router`."""


def is_listed(num_rows: int, count: int) -> bool:
    """Whether slots for `count` rows that have replicas take less memory than bits for all rows, of
    a huge table."""
    bits = num_rows * BITS_PER_ROW / 8
    return bits > max(SMALL, SLOT_AND_NUMBER * count) and count <= MOST_IN_SLOTS


def router_bytes(num_rows: int, count: int, *, on_gpu: bool = False) -> float:
    """Bytes for a table of which `count` rows have replicas. On a CPU these rows have bits of their
    own that say in which tier they are; and a second set of bits where they are in slots."""
    if on_gpu:
        return NUMBER * count
    if is_listed(num_rows, count):
        return (SLOT_AND_NUMBER + 2 * BITS_PER_ROW / 8) * count
    return (num_rows + count) * BITS_PER_ROW / 8
