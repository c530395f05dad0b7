"""Rows of a feature copied to where they are wanted; on CPU in numba, on the thread that asks."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["gather_rows", "measure_rows", "row_offsets", "spread_places", "spread_rows"]

I64 = npt.NDArray[np.int64]


def row_offsets(lengths: Tensor) -> Tensor:
    """[B + 1] int64: where each of B rows that lie end to end begins, and the last one ends."""
    if not lengths.is_cpu:
        return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return torch.from_numpy(_offsets(lengths.contiguous().numpy()))  # four times torch's speed


def measure_rows(offsets: Tensor, rows: Tensor, out: Tensor) -> int:
    """How many ids rows `rows` [N] have together, on CPU; each one's length is put into `out`."""
    numel: int = _measure(offsets.numpy(), rows.numpy(), out.numpy())
    return numel


def gather_rows(values: Tensor, offsets: Tensor, rows: Tensor, out: Tensor) -> None:
    """Lay rows `rows` [N] end to end in `out`; row i is `values[offsets[i] : offsets[i + 1]]`.

    All on CPU; `out` is contiguous and as long as the rows together.
    """
    _gather(values.contiguous().numpy(), offsets.numpy(), rows.numpy(), out.numpy())


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
def _offsets(lengths: npt.NDArray[Any]) -> I64:
    offsets = np.empty(len(lengths) + 1, np.int64)
    offsets[0] = end = 0
    for row in range(len(lengths)):
        end += lengths[row]
        offsets[row + 1] = end
    return offsets


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _measure(offsets: I64, rows: I64, out: npt.NDArray[Any]) -> int:
    numel = 0
    for i in range(len(rows)):
        out[i] = length = offsets[rows[i] + 1] - offsets[rows[i]]
        numel += length
    return numel


# Rows are copied between views: indices that count from 0 need no check for negative ones, and
# several ids go at a time.


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _gather(values: npt.NDArray[Any], offsets: I64, rows: I64, out: npt.NDArray[Any]) -> None:
    at = 0
    for row in rows:
        source = values[offsets[row] : offsets[row + 1]]
        target = out[at : at + len(source)]
        for i in range(len(source)):
            target[i] = source[i]
        at += len(source)


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
