"""Rows of a feature copied to where they are wanted; on CPU, on the thread that asks."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from torch import Tensor

__all__ = ["gather_rows"]


def gather_rows(values: Tensor, offsets: Tensor, rows: Tensor, out: Tensor) -> None:
    """Lay rows `rows` [N] end to end in `out`; row i is `values[offsets[i] : offsets[i + 1]]`.

    All on CPU and contiguous, `out` of the type of `values` and as long as the rows together.
    """
    _gather_rows(values.numpy(), offsets.numpy(), rows.numpy(), out.numpy())


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _gather_rows(
    values: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
) -> None:
    at = 0
    for row in rows:
        source = values[offsets[row] : offsets[row + 1]]
        target = out[at : at + len(source)]
        for i in range(len(source)):
            target[i] = source[i]
        at += len(source)
