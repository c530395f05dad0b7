"""Rows that equal the row before, and rows from which such repeats were left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recd_plugins.compat.kernels import kernel

__all__ = ["held_bounds", "repeats"]

Numbers = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
I32 = npt.NDArray[np.int32]


def repeats(ids: Numbers, offsets: Numbers) -> Bools:
    """[N]: whether row i, which is `ids[offsets[i] : offsets[i + 1]]`, equals row i - 1."""
    found = np.zeros(len(offsets) - 1, np.bool_)
    _note_repeats(ids, offsets, found)
    return found


def held_bounds(bits: npt.NDArray[np.uint8], first: int, offsets: Numbers) -> tuple[I32, Numbers]:
    """Which of the stored rows each of N rows is or repeats [N]; where each stored row begins, and
    where the last one ends.

    `bits` are Arrow's validity bits, from number `first` on, and say which rows are stored.
    `offsets` [N + 1] are those of all N rows; rows that are not stored have no ids.
    """
    which, bounds = np.empty(len(offsets) - 1, np.int32), np.empty_like(offsets)
    held = _note_held(bits, first, offsets, which, bounds)
    return which, bounds[: held + 1]


@kernel
def _note_repeats(ids: Numbers, offsets: Numbers, found: Bools) -> None:
    for row in range(1, len(found)):
        before = ids[offsets[row - 1] : offsets[row]]
        here = ids[offsets[row] : offsets[row + 1]]
        if len(here) == len(before):
            differ = False
            for i in range(len(here)):
                differ |= here[i] != before[i]
            found[row] = not differ


@kernel
def _note_held(
    bits: npt.NDArray[np.uint8], first: int, offsets: Numbers, which: I32, bounds: Numbers
) -> int:
    held = 0
    for row in range(len(which)):
        bounds[held] = offsets[row]  # written again by the next row, if this one is not there
        bit = first + row
        held += (bits[bit >> 3] >> (bit & 7)) & 1
        which[row] = held - 1
    bounds[held] = offsets[len(which)]
    return held
