"""The sizes of slots, for who weighs them and makes none: without the kernels' compiler."""

from __future__ import annotations

__all__ = ["MOST_IN_SLOTS", "ROOM", "SLOT_BYTES"]

ROOM = 2.5
"""Slots for each row: with fewer than two, rows find no place."""
SLOT_BYTES = ROOM * 8
"""Bytes of slots for each row: a slot holds the row's number."""
MOST_IN_SLOTS = 1 << 30
"""Rows that slots are made for, at most: half a hash names no more slots."""
