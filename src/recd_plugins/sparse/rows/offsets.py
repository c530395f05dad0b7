"""Where the rows of many features begin and end; on CPU in numba, on the thread that asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.sparse.rows.addresses import Addresses, array32, array64

__all__ = ["Offsets"]

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

HELD = (torch.int32, torch.int64)
CHUNK = 256
"""Rows of a feature that are looked at at a time, to see whether each is a single id."""


class Offsets(NamedTuple):
    """Of B rows of each of F features."""

    bounds: I64
    """[F, B + 1]: where each row begins, and the last one ends; undefined where `single`."""
    single: Bools
    """[F]: whether each row is a single id, so that row i is id i."""

    @classmethod
    def of(cls, lengths: Sequence[Tensor]) -> Offsets:
        """From lengths [B] each, on CPU."""
        found = cls(
            np.empty((len(lengths), lengths[0].numel() + 1), np.int64),
            np.empty(len(lengths), np.bool_),
        )
        held = [one if one.dtype in HELD else one.to(torch.int32) for one in lengths]
        _add_up(Addresses.of(held).places, *found)
        return found


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _add_up(places: I64, bounds: I64, single: Bools) -> None:
    for feature in range(len(places)):
        if places[feature, 2] == 8:
            single[feature] = _accumulate(array64(places[feature]), bounds[feature])
        else:
            single[feature] = _accumulate(array32(places[feature]), bounds[feature])


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _accumulate(lengths: npt.NDArray[Any], bounds: I64) -> bool:
    if _all_one(lengths):
        return True
    bounds[0] = end = 0
    for row in range(len(lengths)):
        end += lengths[row]
        bounds[row + 1] = end
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
