"""Rows of one width, copied into blocks in another order: dense columns, labels and weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.rows.memory import array_like

__all__ = ["take_blocks"]

I64 = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]


def take_blocks(parts: Sequence[Tensor], rows: I64, sizes: Sequence[int]) -> list[Tensor]:
    """Rows `rows` of the joined parts [n_i, ...], in blocks of `sizes`, each with its own memory.

    There is one call for all blocks, since each call gives up Python's lock, and the thread that
    makes batches would have to wait for it again.
    """
    whole = np.concatenate([part.numpy() for part in parts])
    blocks = [np.empty((size, *whole.shape[1:]), whole.dtype) for size in sizes]
    flat = whole.reshape(len(whole), whole[:1].size)
    _take(flat, rows, np.array([[one.ctypes.data, one.size, one.itemsize] for one in blocks]))
    return [torch.from_numpy(block) for block in blocks]


@kernel
def _take(whole: Numbers, rows: I64, places: I64) -> None:
    """Copies the rows [N, width] one after another into the places that `Addresses` has."""
    # Indices are unsigned: the compiler need not ask whether they count from the end.
    n, width = np.uintp(0), np.uintp(whole.shape[1])
    for place in places:
        out, at = array_like(place, whole), np.uintp(0)
        while at < np.uintp(len(out)):
            row = np.uintp(rows[n])
            for i in range(width):
                out[at + i] = whole[row, i]
            at += width
            n += np.uintp(1)
