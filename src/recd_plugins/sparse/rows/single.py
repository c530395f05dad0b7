"""Which rows of a feature are equal where each is a single id: it is compared as it is."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["refine_single"]

MIX = np.uint64(0xFF51AFD7ED558CCD)
STEP = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)
NEXT = np.uint64(1)

I64 = npt.NDArray[np.int64]
Scratch = npt.NDArray[np.int32]


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def refine_single(
    ids: npt.NDArray[Any], codes: I64, firsts: I64, slots: Scratch, runs: Scratch, ends: Scratch
) -> np.int64:
    """Part what was equal so far: rows keep one code where they had one, and their ids agree.

    Codes [B] are overwritten by new ones, numbered in order of first appearance; returned is how
    many. `firsts` [B + 1] gets where each comes first; what lies behind the last is undefined.
    The others are scratch: `slots` is a power of two, at least 2 * B, and each of the two is [B].

    In a clustered table equal rows lie side by side. So rows are first parted into runs, without
    a branch that the processor could guess wrong, and then a run is looked up at a time. What is
    found of it, and whether it is new, is not branched upon either.
    """
    if len(codes) == 0:
        return np.int64(0)
    last = np.uintp(0)
    runs[0] = ends[0] = 0
    for row in range(np.uintp(1), np.uintp(len(codes))):
        before = row - np.uintp(1)
        last += np.uintp((ids[row] != ids[before]) | (codes[row] != codes[before]))
        runs[row], ends[last] = last, row
    size = 2
    while np.uintp(size) < np.uintp(2) * (last + np.uintp(1)):
        size *= 2
    slots[:size] = -1
    mask = np.uint64(size - 1)
    num_unique = np.int64(0)
    begin = np.uintp(0)
    for run in range(last + np.uintp(1)):
        one, old = ids[begin], codes[begin]
        mixed = (np.uint64(one) ^ (np.uint64(old) * STEP)) * MIX
        slot = (mixed ^ (mixed >> HALF)) & mask
        while True:
            known = np.int64(slots[slot])
            new = num_unique if known < 0 else known
            slots[slot], firsts[np.uintp(num_unique)] = new, begin
            num_unique += known < 0
            first = np.uintp(firsts[np.uintp(new)])
            if (ids[first] == one) & (codes[first] == old):
                break
            slot = (slot + NEXT) & mask
        begin, ends[run] = np.uintp(ends[run]) + np.uintp(1), new
    for row in range(np.uintp(len(codes))):
        codes[row] = ends[np.uintp(runs[row])]
    return num_unique
