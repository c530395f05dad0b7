"""Where rows begin and end: of all of a feature, and of its unique ones; on CPU in numba."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.sparse.rows.addresses import Addresses, array32, array64

__all__ = ["Spans", "add_up", "addresses_of_lengths", "note_spans"]

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

HELD = (torch.int32, torch.int64)
CHUNK = 256
"""Rows of a feature that are looked at at a time, to see whether each is a single id."""


class Spans(NamedTuple):
    """Of the unique rows among B of each of F features: what the rows' copy needs to know."""

    bounds: I64
    """[F, B, 2]: where each begins and ends; undefined behind the last."""
    single: Bools
    """[F]: whether each of the B rows is a single id, so that row i is id i."""
    numels: I64
    """[F]: how many ids the unique rows have."""

    @classmethod
    def empty(cls, num_features: int, num_rows: int) -> Spans:
        return cls(
            np.empty((num_features, num_rows, 2), np.int64),
            np.empty(num_features, np.bool_),
            np.empty(num_features, np.int64),
        )


def addresses_of_lengths(lengths: Sequence[Tensor]) -> Addresses:
    """As `add_up` takes them."""
    return Addresses.of([one if one.dtype in HELD else one.to(torch.int32) for one in lengths])


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def add_up(place: I64, offsets: I64) -> Any:
    """Whether each of the lengths at `place` is 1; if not, `offsets` [B + 1] are set to theirs."""
    if place[2] == 8:
        return _accumulate(array64(place), offsets)
    return _accumulate(array32(place), offsets)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def note_spans(offsets: I64, single: bool, firsts: I64, bounds: I64) -> np.int64:
    """Where rows `firsts` [U] of all begin and end goes to `bounds` [B, 2]; their ids' number."""
    if single:
        for i in range(len(firsts)):
            bounds[i, 0], bounds[i, 1] = firsts[i], firsts[i] + 1
        return np.int64(len(firsts))
    numel = np.int64(0)
    for i in range(len(firsts)):
        begin, end = offsets[np.uintp(firsts[i])], offsets[np.uintp(firsts[i] + 1)]
        bounds[i, 0], bounds[i, 1] = begin, end
        numel += end - begin
    return numel


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _accumulate(lengths: npt.NDArray[Any], offsets: I64) -> bool:
    if _all_one(lengths):
        return True
    offsets[0] = end = 0
    for row in range(len(lengths)):
        end += lengths[row]
        offsets[row + 1] = end
    return False


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _all_one(lengths: npt.NDArray[Any]) -> bool:
    for begin in range(0, len(lengths), CHUNK):
        other = 0
        for length in lengths[begin : begin + CHUNK]:
            other |= length ^ 1
        if other:
            return False
    return True
