"""Which rows of a jagged feature are equal: exact, in one pass, in order of first appearance.

A row is taken for a copy only after its ids were compared, whatever its hash. On CPU a hash
table in numba: it reads ids at the speed of their copy, on the thread that calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.sparse.rows.addresses import Addresses, array16, array32, array64
from recd_plugins.sparse.rows.unique_on_device import unique_rows_on_device

__all__ = [
    "Firsts",
    "Unique",
    "group_codes",
    "hash_row",
    "refine_groups",
    "unique_numbers",
    "unique_rows",
]

MIX = np.uint64(0xFF51AFD7ED558CCD)
STEP = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)

I64 = npt.NDArray[np.int64]


class Unique(NamedTuple):
    """B rows as U different ones: row i equals row `firsts[inverse_lookup[i]]`."""

    inverse_lookup: Tensor
    """[B] int64, in [0, U)."""
    firsts: Tensor
    """[U] int64, ascending: the row where each different one appears first."""


class Firsts(NamedTuple):
    """Where the unique samples of G groups first appear among B."""

    rows: I64
    """[G, B], of which group g has the first `counts[g]`, ascending."""
    counts: I64
    """[G]."""

    def of(self, group: int) -> Tensor:
        """[U]."""
        return torch.from_numpy(self.rows[group, : self.counts[group]].copy())


def unique_rows(values: Tensor, offsets: Tensor) -> Unique:
    """The different rows among B: row i is `values[offsets[i] : offsets[i + 1]]`.

    `values` [N] are int32 or int64 ids (or any other bits, viewed as such), `offsets` [B + 1]
    may begin anywhere. Empty rows equal each other.
    """
    if values.is_cuda:
        return Unique(*unique_rows_on_device(values, offsets))
    inverse_lookup = torch.empty(1, offsets.numel() - 1, dtype=torch.int64)
    one = np.zeros(1, np.int64)
    firsts = refine_groups(
        Addresses.of([values]), np.arange(2), offsets.long().numpy()[None], one, inverse_lookup
    )
    return Unique(inverse_lookup[0], firsts.of(0))


def refine_groups(
    columns: Addresses, bounds: I64, offsets: I64, offsets_of: I64, inverse_lookup: Tensor
) -> Firsts:
    """The different samples of G groups, on CPU: two are one where all of its columns agree.

    Group g has the columns `bounds[g]` to `bounds[g + 1]`, and column c, which are ids or
    other bits, the offsets [B + 1] of its rows in row `offsets_of[c]` of `offsets`. Which sample
    each is goes to `inverse_lookup` [G, B].
    """
    firsts = Firsts(
        np.empty(inverse_lookup.shape, np.int64), np.empty(len(inverse_lookup), np.int64)
    )
    _refine_groups(columns.places, bounds, offsets, offsets_of, inverse_lookup.numpy(), *firsts)
    return firsts


def group_codes(codes: Sequence[Tensor]) -> Unique:
    """The different combinations that several features' codes form.

    `codes` are inverse lookups, [B] int64 each; samples are equal where all of theirs are.
    """
    if not codes:
        raise ValueError("group_codes needs one feature at least.")
    # Rows of codes: twice as fast as one number of mixed radix, which may overflow besides.
    ends = torch.arange(codes[0].numel() + 1, device=codes[0].device) * len(codes)
    return unique_rows(torch.stack(list(codes), dim=1).view(-1), ends)


def unique_numbers(numbers: Tensor) -> Unique:
    """The different ones of B numbers, in order of first appearance."""
    return unique_rows(numbers, torch.arange(numbers.numel() + 1, device=numbers.device))


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _refine_groups(
    places: I64,
    bounds: I64,
    offsets: I64,
    offsets_of: I64,
    codes: I64,
    firsts: I64,
    counts: I64,
) -> None:
    num_groups, num_rows = codes.shape
    size = 2
    while size < 2 * num_rows:
        size *= 2
    slots, hashes = np.empty(size, np.int32), np.empty(num_rows, np.uint64)
    for group in range(num_groups):
        codes[group] = 0
        table = (slots, hashes, firsts[group])
        for column in range(bounds[group], bounds[group + 1]):
            place, rows = places[column], offsets[offsets_of[column]]
            if place[2] == 8:
                counts[group] = _refine(array64(place), rows, codes[group], table)
            elif place[2] == 4:
                counts[group] = _refine(array32(place), rows, codes[group], table)
            else:
                counts[group] = _refine(array16(place), rows, codes[group], table)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _refine(values: npt.NDArray[Any], offsets: I64, codes: I64, table: Any) -> int:
    """Part what was equal so far: rows keep one code where they had one, and their ids agree.

    Codes are overwritten by new ones, numbered in order of first appearance; returned is how
    many. The table is an open hash table, at most half full: its slots hold the new code of a
    unique row, and of each new code it has the hash, and where it comes first.
    """
    slots, hashes, firsts = table
    slots[:] = -1
    mask = np.uint64(len(slots) - 1)
    num_unique = 0
    old = new = np.int64(-1)
    ids, row_hash = values[:0], np.uint64(0)
    for row in range(len(codes)):
        # In a clustered table the row before is the likeliest copy: one look, and no hash.
        before, ids = ids, values[offsets[row] : offsets[row + 1]]
        repeats = row > 0 and _equal(ids, before)
        if not repeats:
            row_hash = hash_row(ids)
        if not repeats or codes[row] != old:
            old = codes[row]
            # One to one in the old code: with the ids and this equal, the old codes are too.
            mixed = (row_hash ^ np.uint64(old)) * MIX
            mixed ^= mixed >> HALF
            slot = mixed & mask
            while True:
                new = np.int64(slots[slot])
                if new < 0:
                    slots[slot] = new = np.int64(num_unique)
                    hashes[new], firsts[new] = mixed, row
                    num_unique += 1
                    break
                if hashes[new] == mixed:
                    first = firsts[new]
                    if _equal(ids, values[offsets[first] : offsets[first + 1]]):
                        break
                slot = (slot + np.uint64(1)) & mask
        codes[row] = new
    return num_unique


# Rows are handed over as views: indices that count from 0 need no check for negative ones,
# which would keep the compiler from comparing several ids at a time.


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def hash_row(ids: npt.NDArray[Any]) -> np.uint64:
    """h = mix(n + Σ_i mix(id_i xor i·STEP)): no term waits for another."""
    total = np.uint64(len(ids))
    for i in range(len(ids)):
        term = (np.uint64(ids[i]) ^ (np.uint64(i) * STEP)) * MIX
        total += term ^ (term >> HALF)
    total *= MIX
    return total ^ (total >> HALF)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _equal(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> bool:
    if len(left) != len(right):
        return False
    differ = 0
    for i in range(len(left)):
        differ |= left[i] ^ right[i]
    return differ == 0
