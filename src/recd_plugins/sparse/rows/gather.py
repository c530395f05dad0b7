"""Rows of a feature copied to where they are wanted; on CPU in numba, on the thread that asks."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.sparse.rows.addresses import Addresses, array16, array32, array64
from recd_plugins.sparse.rows.offsets import Offsets
from recd_plugins.sparse.rows.prefetch import prefetch
from recd_plugins.sparse.rows.unique import Firsts

__all__ = ["gather_each", "measure_each", "spread_places", "spread_rows"]

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

WHOLE = 8
"""Rows of up to so many ids are copied by so many, and the next one lies over what is too much:
no loop, of whose end the processor would guess wrong."""
AHEAD = 8
"""Rows: so far before it is copied, one is asked for, since they lie anywhere in memory."""


def measure_each(offsets: Offsets, groups: I64, firsts: Firsts, lengths: Tensor) -> I64:
    """[F] how many ids the unique rows of each feature have, which is in group `groups[f]`.

    Their lengths go to `lengths` [F, max(counts)], with zeros behind the last.
    """
    numels = np.empty(len(groups), np.int64)
    _measure(*offsets, groups, *firsts, lengths.numpy(), numels)
    return numels


def gather_each(
    values: Addresses, offsets: Offsets, groups: I64, firsts: Firsts, out: Tensor
) -> None:
    """Lay the unique rows of all features end to end in `out`, which is as long as they are."""
    _gather(values.places, *offsets, groups, *firsts, out.numpy())


def spread_rows(values: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Rows `values[starts[i] : starts[i] + lengths[i]]`, one after another, on any device."""
    if not values.is_cpu:
        return values[spread_places(starts, lengths)]
    spread = _spread(
        values.contiguous().numpy(), starts.contiguous().numpy(), lengths.contiguous().numpy()
    )
    return torch.from_numpy(spread)


def spread_places(starts: Tensor, lengths: Tensor) -> Tensor:
    """Where among the values each of those that `spread_rows` makes lies."""
    # Value n of the result lies as far behind its row's start as n behind its row's begin.
    where = torch.repeat_interleave(starts - (lengths.cumsum(0) - lengths), lengths)
    return where + torch.arange(where.numel(), device=where.device)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _measure(
    offsets: I64,
    single: Bools,
    groups: I64,
    firsts: I64,
    counts: I64,
    lengths: npt.NDArray[Any],
    numels: I64,
) -> None:
    for feature in range(len(offsets)):
        ends, count = offsets[feature], counts[groups[feature]]
        rows, numel = firsts[groups[feature], :count], 0
        if single[feature]:
            lengths[feature, :count], numel = 1, count
        else:
            for i in range(count):
                length = ends[rows[i] + 1] - ends[rows[i]]
                lengths[feature, i] = length
                numel += length
        lengths[feature, count:] = 0
        numels[feature] = numel


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _gather(
    places: I64,
    offsets: I64,
    single: Bools,
    groups: I64,
    firsts: I64,
    counts: I64,
    out: npt.NDArray[Any],
) -> None:
    at = 0
    for feature in range(len(places)):
        place, rows = places[feature], firsts[groups[feature], : counts[groups[feature]]]
        bounds, alone, left = offsets[feature], single[feature], out[at:]
        if place[2] == 8:
            at += _copy_rows(array64(place), bounds, alone, rows, left)
        elif place[2] == 4:
            at += _copy_rows(array32(place), bounds, alone, rows, left)
        else:
            at += _copy_rows(array16(place), bounds, alone, rows, left)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _copy_rows(
    values: npt.NDArray[Any], offsets: I64, single: bool, rows: I64, out: npt.NDArray[Any]
) -> np.int64:
    if single:
        for i in range(len(rows)):
            out[i] = values[rows[i]]
        return np.int64(len(rows))
    at, next_row = np.uintp(0), np.uintp(1)
    in_reach = min(np.int64(len(values)), np.int64(len(out))) - WHOLE
    for i in range(len(rows)):
        row, later = rows[i], np.uintp(rows[min(i + AHEAD, len(rows) - 1)])
        prefetch(values, np.uintp(offsets[later]), np.uintp(offsets[later + next_row]))
        start = np.uintp(offsets[np.uintp(row)])
        length = np.uintp(offsets[np.uintp(row) + next_row]) - start
        if length <= WHOLE and max(start, at) <= in_reach:
            for place in range(np.uintp(WHOLE)):
                out[at + place] = values[start + place]
        else:
            for place in range(length):
                out[at + place] = values[start + place]
        at += length
    return np.int64(at)


# Rows are copied between views: indices that count from 0 need no check for negative ones, and
# several ids go at a time.


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _spread(values: npt.NDArray[Any], starts: I64, lengths: I64) -> npt.NDArray[Any]:
    spread = np.empty(lengths.sum(), values.dtype)
    at = 0
    for row in range(len(starts)):
        source = values[starts[row] : starts[row] + lengths[row]]
        target = spread[at : at + len(source)]
        for i in range(len(source)):
            target[i] = source[i]
        at += len(source)
    return spread
