"""Columns as flat arrays, and lists of ids as Arrow has them.

B lists lie one after the other: list i is `ids[offsets[i] : offsets[i + 1]]`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recd_plugins.api.data import IDS

__all__ = ["F64", "I64", "U64", "id_lists", "offsets_of", "ranges", "single_ids"]

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
U64: TypeAlias = NDArray[np.uint64]


def id_lists(ids: I64, offsets: I64) -> pa.Array:
    """The column of these lists; ids [N], offsets [B + 1]."""
    return pa.ListArray.from_arrays(offsets.astype(np.int32), pa.array(ids), type=IDS)


def single_ids(ids: I64) -> pa.Array:
    """The column of one id per row; ids [B]."""
    return id_lists(ids, np.arange(ids.size + 1))


def offsets_of(lengths: I64) -> I64:
    """Where each list starts, and the end of the last; lengths [B] to [B + 1]."""
    return np.concatenate(([0], lengths.cumsum()))


def ranges(starts: I64, lengths: I64) -> I64:
    """start, start + 1, ... of each range, one range after the other; [B], [B] to [N]."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
