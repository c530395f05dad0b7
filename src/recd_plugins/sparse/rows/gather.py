"""Where rows begin and end, and copies of them to where they are needed.

On CPU, numba does this on the thread that calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.rows.memory import Addresses, array16, array32, array64, prefetch

__all__ = [
    "AHEAD",
    "WHOLE",
    "Spans",
    "add_up",
    "addresses_of_lengths",
    "all_one",
    "copy_row",
    "gather_each",
    "measure_each",
    "note_spans",
    "spread_places",
    "spread_rows",
]

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

HELD = (torch.int32, torch.int64)
CHUNK = 256
"""How many rows of a feature are checked at a time for whether each is a single id."""
WHOLE = 8
"""A row of up to this many ids is copied as exactly this many, and the next row overwrites the
excess: so there is no loop whose end the processor would mispredict."""
AHEAD = 16
"""How many rows ahead of its copy a row is prefetched, because rows lie anywhere in memory."""


class Spans(NamedTuple):
    """Where the unique rows lie among B rows, for each of F features; they are copied by this."""

    bounds: I64
    """[F, B, 2]: where each begins and ends; undefined after the last unique row."""
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
    """The lengths in the form that `add_up` takes."""
    return Addresses.of([one if one.dtype in HELD else one.to(torch.int32) for one in lengths])


@kernel
def add_up(place: I64, offsets: I64) -> Any:
    """Whether each of the lengths at `place` is 1. If not, `offsets` [B + 1] are set to the offsets
    of these lengths."""
    if place[2] == 8:
        return _accumulate(array64(place), offsets)
    return _accumulate(array32(place), offsets)


@kernel
def note_spans(offsets: I64, single: bool, firsts: I64, bounds: I64) -> np.int64:
    """Write to `bounds` [B, 2] where rows `firsts` [U] begin and end among all. Returns the number
    of their ids."""
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


@kernel
def _accumulate(lengths: npt.NDArray[Any], offsets: I64) -> bool:
    if all_one(lengths):
        return True
    offsets[0] = end = 0
    for row in range(len(lengths)):
        end += lengths[row]
        offsets[row + 1] = end
    return False


@kernel
def all_one(lengths: npt.NDArray[Any]) -> bool:
    """Whether each row has one id."""
    for begin in range(0, len(lengths), CHUNK):
        other = 0
        for length in lengths[begin : begin + CHUNK]:
            other |= length ^ 1
        if other:
            return False
    return True


def measure_each(spans: Spans, counts: I64, lengths: Tensor) -> None:
    """Write the lengths of the unique rows, `counts` [F] of them, to `lengths` [F, max(counts)],
    followed by zeros."""
    _measure(spans.bounds, counts, lengths.numpy())


def gather_each(values: Addresses, spans: Spans, counts: I64, out: Tensor) -> None:
    """Lay the unique rows of all features end to end in `out`, which has exactly their length."""
    _gather(values.places, spans.bounds, spans.single, counts, out.numpy())


def spread_rows(
    values: Tensor, starts: Tensor, lengths: Tensor, numel: int | None = None
) -> Tensor:
    """Rows `values[starts[i] : starts[i] + lengths[i]]`, one after another, on any device;
    gradients flow through them. `numel` is the sum of the lengths, for which the processor else
    waits for CUDA."""
    if not values.is_cpu or values.requires_grad:
        return values[spread_places(starts, lengths, numel)]
    if values.dtype in (torch.float16, torch.bfloat16):  # numba has neither
        return spread_rows(values.view(torch.int16), starts, lengths).view(values.dtype)
    spread = _spread(
        values.contiguous().numpy(), starts.contiguous().numpy(), lengths.contiguous().numpy()
    )
    return torch.from_numpy(spread)


def spread_places(starts: Tensor, lengths: Tensor, numel: int | None = None) -> Tensor:
    """The indices of the values that `spread_rows` returns."""
    # Value n of the result is as far from its row's start as n is from where its row begins.
    begins = starts - (lengths.cumsum(0) - lengths)
    where = torch.repeat_interleave(begins, lengths, output_size=numel)
    return where + torch.arange(where.numel(), device=where.device)


@kernel
def _measure(bounds: I64, counts: I64, lengths: npt.NDArray[Any]) -> None:
    for feature in range(len(bounds)):
        count = counts[feature]
        for i in range(count):
            lengths[feature, i] = bounds[feature, i, 1] - bounds[feature, i, 0]
        lengths[feature, count:] = 0


@kernel
def _gather(places: I64, bounds: I64, single: Bools, counts: I64, out: npt.NDArray[Any]) -> None:
    at = 0
    for feature in range(len(places)):
        place, rows = places[feature], bounds[feature, : counts[feature]]
        alone, left = single[feature], out[at:]
        if place[2] == 8:
            at += _copy_rows(array64(place), rows, alone, left)
        elif place[2] == 4:
            at += _copy_rows(array32(place), rows, alone, left)
        else:
            at += _copy_rows(array16(place), rows, alone, left)


@kernel
def _copy_rows(
    values: npt.NDArray[Any], rows: I64, single: bool, out: npt.NDArray[Any]
) -> np.int64:
    if single:
        for i in range(len(rows)):
            out[i] = values[np.uintp(rows[i, 0])]
        return np.int64(len(rows))
    at = np.uintp(0)
    in_reach = min(np.int64(len(values)), np.int64(len(out))) - WHOLE
    for row in range(len(rows)):
        later = min(row + AHEAD, len(rows) - 1)
        prefetch(values, np.uintp(rows[later, 0]), np.uintp(rows[later, 1]))
        start = np.uintp(rows[row, 0])
        length = np.uintp(rows[row, 1]) - start
        copy_row(values, start, length, out, at, in_reach)
        at += length
    return np.int64(at)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def copy_row(
    values: npt.NDArray[Any],
    start: np.uintp,
    length: np.uintp,
    out: npt.NDArray[Any],
    at: np.uintp,
    in_reach: int,
) -> None:
    """Copy a row to where `out` is not filled yet. `in_reach` is the last place in both from which
    `WHOLE` ids can be copied."""
    if length <= WHOLE and max(start, at) <= in_reach:
        for i in range(np.uintp(WHOLE)):
            out[at + i] = values[start + i]
    else:
        for i in range(length):
            out[at + i] = values[start + i]


# Rows are copied between views: their indices count from 0, so there is no check for negative
# indices, and several ids are copied at a time.


@kernel
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
