"""The sizes of slots, for code that only weighs them: importing this needs no kernel compiler."""

from __future__ import annotations

__all__ = ["MOST_IN_SLOTS", "ROOM", "SLOT_BYTES"]

ROOM = 2.5
"""Slots per row: with fewer than two, rows find no place."""
SLOT_BYTES = ROOM * 8
"""Bytes of slots per row: a slot holds the row's number."""
MOST_IN_SLOTS = 1 << 30
"""The most rows for which slots are made: half a hash cannot address more slots."""
