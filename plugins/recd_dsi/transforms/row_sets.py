"""Which ids of a row are also in another row of the same sample, by a hash table of one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recd_dsi.transforms.mixing import SPREAD
from recd_plugins.api.rows import kernel

__all__ = ["in_others", "intersected", "united"]

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SPARE = 16
"""The least number of cells per id in a row's table, so that at most one cell in this many is
used."""


@kernel
def intersected(
    ids: I64, lengths: I64, others: I64, other_lengths: I64, out: I64, left: I64
) -> int:
    """Write, row by row, the ids that are among the others of the same row. Returns their
    number."""
    cells = _cells(other_lengths)
    at = begin = made = 0
    for row in range(len(lengths)):
        before, mask = made, _enter(others, begin, other_lengths[row], cells)
        for i in range(at, at + lengths[row]):
            out[made] = ids[i]  # no branch: what is not kept is written over
            made += _holds(ids[i], others, begin, cells, mask)
        left[row] = made - before
        at += lengths[row]
        begin += other_lengths[row]
    return made


@kernel
def united(ids: I64, lengths: I64, others: I64, other_lengths: I64, out: I64, left: I64) -> int:
    """Write, row by row, the ids, and then those of the others that are not among them. Returns
    their number."""
    cells = _cells(lengths)
    at = begin = made = 0
    for row in range(len(lengths)):
        before, mask = made, _enter(ids, at, lengths[row], cells)
        for i in range(at, at + lengths[row]):
            out[made + i - at] = ids[i]
        made += lengths[row]
        for j in range(begin, begin + other_lengths[row]):
            out[made] = others[j]
            made += 1 - _holds(others[j], ids, at, cells, mask)
        left[row] = made - before
        at += lengths[row]
        begin += other_lengths[row]
    return made


@kernel
def in_others(ids: I64, lengths: I64, others: I64, other_lengths: I64, found: Bools) -> None:
    """Whether each id is in the row of the others beside its own."""
    cells = _cells(other_lengths)
    at = begin = 0
    for row in range(len(lengths)):
        mask = _enter(others, begin, other_lengths[row], cells)
        for i in range(at, at + lengths[row]):
            found[i] = _holds(ids[i], others, begin, cells, mask)
        at += lengths[row]
        begin += other_lengths[row]


@kernel
def _cells(lengths: I64) -> I64:
    """A table for any of the rows. A cell holds the place of an id among the ids of all rows. If
    that place is before the current row, the id is of an earlier row, and the cell is free. So no
    row has to empty the table for the next."""
    longest = 0
    for length in lengths:
        longest = max(longest, length)
    return np.full(np.int64(_mask(longest)) + 1, -1, np.int64)


@kernel
def _mask(length: np.int64) -> Any:
    """The number of cells for so many ids, which is a power of two, less 1."""
    mask = np.uintp(SPARE * length) | np.uintp(63)
    for shift in (1, 2, 4, 8, 16):
        mask |= mask >> np.uintp(shift)
    return mask


@kernel
def _enter(ids: I64, begin: int, length: int, cells: I64) -> Any:
    """Write a row of ids to the table, each into the first free cell from its hash on. Returns the
    mask by which `_holds` finds them."""
    mask = _mask(length)
    for at in range(begin, begin + length):
        cell = _hash(ids[at]) & mask
        while cells[cell] >= begin and ids[cells[cell]] != ids[at]:
            cell = (cell + np.uintp(1)) & mask
        cells[cell] = at
    return mask


@kernel
def _holds(id_: np.int64, ids: I64, begin: int, cells: I64, mask: np.uintp) -> int:
    """1 if an id is in the row that begins there and was written last, else 0."""
    cell = _hash(id_) & mask
    while cells[cell] >= begin:
        if ids[cells[cell]] == id_:
            return 1
        cell = (cell + np.uintp(1)) & mask
    return 0


@kernel
def _hash(id_: np.int64) -> Any:
    return np.uintp((np.uint64(id_) * SPREAD) >> np.uint64(32))
