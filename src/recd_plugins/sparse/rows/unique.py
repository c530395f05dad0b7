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

__all__ = ["Unique", "group_codes", "unique_numbers", "unique_rows"]

MIX = np.uint64(0xFF51AFD7ED558CCD)
STEP = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)


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
    inverse_lookup, firsts = _unique_rows(
        values.contiguous().numpy(), offsets.to(torch.int64).contiguous().numpy()
    )
    return Unique(torch.from_numpy(inverse_lookup), torch.from_numpy(firsts))


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
def _unique_rows(
    values: npt.NDArray[Any], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """An open hash table at most half full, its slots holding the number of a unique row."""
    num_rows = len(offsets) - 1
    size = 2
    while size < 2 * num_rows:
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, np.int64)
    hashes = np.empty(num_rows, np.uint64)
    inverse_lookup = np.empty(num_rows, np.int64)
    firsts = np.empty(num_rows, np.int64)
    num_unique = 0
    for row in range(num_rows):
        ids = values[offsets[row] : offsets[row + 1]]
        # In a clustered table the row before is the likeliest copy: one look, and no hash.
        if row > 0 and _equal(ids, values[offsets[row - 1] : offsets[row]]):
            inverse_lookup[row] = inverse_lookup[row - 1]
            continue
        row_hash = hash_row(ids)
        slot = row_hash & mask
        while True:
            known = slots[slot]
            if known < 0:
                slots[slot] = known = num_unique
                hashes[known], firsts[known] = row_hash, row
                num_unique += 1
                break
            if hashes[known] == row_hash:
                first = firsts[known]
                if _equal(ids, values[offsets[first] : offsets[first + 1]]):
                    break
            slot = (slot + np.uint64(1)) & mask
        inverse_lookup[row] = known
    return inverse_lookup, firsts[:num_unique].copy()


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
    if len(left) and left[0] != right[0]:
        return False
    differ = False
    for i in range(len(left)):
        differ |= left[i] != right[i]
    return not differ
