"""Some rows of a huge table in slots: 2.5 slots for each of these rows, however large the table is.

A row is in one of the two slots that its hash gives, so two reads show whether it is in any, and no
branch depends on the row (cuckoo hashing).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.rows.slot_sizes import ROOM

__all__ = ["among_slots", "numbers_in", "slot_of", "slots_of"]

I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
U64s: TypeAlias = npt.NDArray[np.uint64]

U64 = np.uint64
FREE = U64(0xFFFFFFFFFFFFFFFF)
"""The content of a slot without a row, while the slots are being filled."""
FIRST, SECOND = U64(0xFF51AFD7ED558CCD), U64(0xC4CEB9FE1A85EC53)
"""The constants of MurmurHash3's fmix64: each bit of a row affects each bit of the hash."""
SHIFT, HALF = U64(33), U64(32)
"""`SHIFT` is fmix64's own; `HALF` is how many bits of the hash give a slot."""
MOVES = 500
"""How many rows are moved at most to place one row, before all are put in more slots."""


def slots_of(rows: I64) -> U64s:
    """Slots that hold one or more rows; the rows must not be negative, and all must differ."""
    size = int(ROOM * len(rows)) + 2
    while not _fill(slots := np.full(size, FREE), rows):
        size += size // 4
    return slots


def numbers_in(slots: U64s, rows: I64) -> I32:
    """The index of each slot's row in the ascending `rows` that were given to `slots_of`."""
    numbers = np.zeros(len(slots), np.int32)  # free slots repeat the first row
    _number(slots, rows, numbers)
    return numbers


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def among_slots(number: np.uint64, start: np.uint64, size: np.uint64, slots: U64s) -> Any:
    """Whether a row is in `slots[start : start + size]`: 0 or 1."""
    one, other = _places(number, size)
    return np.uint8(slots[start + one] == number) | np.uint8(slots[start + other] == number)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def slot_of(number: np.uint64, start: np.uint64, size: np.uint64, slots: U64s) -> Any:
    """The slot that a row is in, if it is in any; some slot, if not."""
    one, other = _places(number, size)
    return start + (one if slots[start + one] == number else other)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _places(number: np.uint64, size: np.uint64) -> Any:
    """The two slots, of so many, that a row may be in: by the upper and lower half of its hash."""
    mixed = (number ^ (number >> SHIFT)) * FIRST
    mixed = (mixed ^ (mixed >> SHIFT)) * SECOND
    mixed ^= mixed >> SHIFT
    upper, lower = mixed >> HALF, mixed & U64(0xFFFFFFFF)
    return (upper * size) >> HALF, (lower * size) >> HALF


@kernel
def _fill(slots: U64s, rows: I64) -> bool:
    """Put each row into one of its two slots. A row that is there already moves to its other slot.
    Returns false if some row finds no place. At the end, free slots repeat the first row, so that
    no slot has a row that does not exist."""
    size = U64(len(slots))
    for row in rows:
        moved = U64(row)
        at, _ = _places(moved, size)
        for _ in range(MOVES):
            moved, slots[at] = slots[at], moved
            if moved == FREE:
                break
            one, other = _places(moved, size)
            at = other if at == one else one
        if moved != FREE:
            return False
    for place in range(len(slots)):
        if slots[place] == FREE:
            slots[place] = U64(rows[0])
    return True


@kernel
def _number(slots: U64s, rows: I64, numbers: I32) -> None:
    size = U64(len(slots))
    for number in range(len(rows)):
        numbers[slot_of(U64(rows[number]), U64(0), size, slots)] = number
