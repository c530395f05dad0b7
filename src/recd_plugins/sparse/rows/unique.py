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

from recd_plugins.sparse.rows.unique_on_device import unique_rows_on_device

__all__ = ["Unique", "group_codes", "hash_row", "refine", "unique_numbers", "unique_rows"]

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


def unique_rows(values: Tensor, offsets: Tensor) -> Unique:
    """The different rows among B: row i is `values[offsets[i] : offsets[i + 1]]`.

    `values` [N] are int32 or int64 ids (or any other bits, viewed as such), `offsets` [B + 1]
    may begin anywhere. Empty rows equal each other.
    """
    if values.is_cuda:
        return Unique(*unique_rows_on_device(values, offsets))
    inverse_lookup = torch.zeros(offsets.numel() - 1, dtype=torch.int64)
    firsts = refine(values, offsets, inverse_lookup)
    return Unique(inverse_lookup, firsts)


def refine(values: Tensor, offsets: Tensor, codes: Tensor) -> Tensor:
    """Part what was equal so far: rows keep one code where they had one, and their ids agree.

    `codes` [B] are overwritten by new ones, numbered in order of first appearance; returned is
    [U], ascending: the row where each appears first. Codes that were all 0, refined by one
    feature of a group after another, become its inverse lookup. On CPU.
    """
    firsts = _refine(
        values.contiguous().numpy(), offsets.to(torch.int64).contiguous().numpy(), codes.numpy()
    )
    return torch.from_numpy(firsts)


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
def _refine(values: npt.NDArray[Any], offsets: I64, codes: I64) -> I64:
    """An open hash table at most half full, its slots holding the new code of a unique row."""
    num_rows = len(codes)
    size = 2
    while size < 2 * num_rows:
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, np.int32)
    # Of each new code: its hash, the old code, and where it appears first.
    hashes = np.empty(num_rows, np.uint64)
    olds = np.empty(num_rows, np.int64)
    firsts = np.empty(num_rows, np.int64)
    num_unique = 0
    old = new = np.int64(-1)
    ids, row_hash = values[:0], np.uint64(0)
    for row in range(num_rows):
        # In a clustered table the row before is the likeliest copy: one look, and no hash.
        before, ids = ids, values[offsets[row] : offsets[row + 1]]
        repeats = row > 0 and _equal(ids, before)
        if not repeats:
            row_hash = hash_row(ids)
        if not repeats or codes[row] != old:
            old = codes[row]
            mixed = (row_hash ^ np.uint64(old)) * MIX
            mixed ^= mixed >> HALF
            slot = mixed & mask
            while True:
                new = np.int64(slots[slot])
                if new < 0:
                    slots[slot] = new = np.int64(num_unique)
                    hashes[new], olds[new], firsts[new] = mixed, old, row
                    num_unique += 1
                    break
                if hashes[new] == mixed and olds[new] == old:
                    first = firsts[new]
                    if _equal(ids, values[offsets[first] : offsets[first + 1]]):
                        break
                slot = (slot + np.uint64(1)) & mask
        codes[row] = new
    return firsts[:num_unique].copy()


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
