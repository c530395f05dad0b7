"""Columns as flat arrays: lists of ids as in Arrow, bands of equal keys, windows of history.

B lists are stored one after the other: list i is `ids[offsets[i] : offsets[i + 1]]`. A band is a
sequence of neighbouring rows that agree in some keys, such as the samples of one session.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recd_plugins.api.data import IDS

__all__ = [
    "F64",
    "I64",
    "U64",
    "History",
    "band_begins",
    "band_starts",
    "id_lists",
    "offsets_of",
    "ranges",
    "single_ids",
    "windows",
]

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
    """The start of each list, and the end of the last; lengths [B] to [B + 1]."""
    return np.concatenate(([0], lengths.cumsum()))


def ranges(starts: I64, lengths: I64) -> I64:
    """start, start + 1, ... of each range, one range after the other; [B], [B] to [N]."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)


def band_begins(*keys: NDArray[Any]) -> NDArray[np.bool_]:
    """[N] whether a row begins a band, in which all keys [N] are equal."""
    begins = np.ones(keys[0].size, np.bool_)
    begins[1:] = False
    for key in keys:
        begins[1:] |= key[1:] != key[:-1]
    return begins


def band_starts(*keys: NDArray[Any]) -> I64:
    """[N] the first row of each row's band."""
    begins = band_begins(*keys)
    starts: I64 = np.flatnonzero(begins)[begins.cumsum() - 1]
    return starts


History = Literal["frozen", "growing"]
"""frozen: one value for the whole session, so its samples are exact duplicates.
growing: one more id per event, so they are shifted (partial) duplicates."""


def windows(ids: I64, starts: I64, ends: I64, most: int) -> pa.Array:
    """A column whose row i is the last `most` of `ids[starts[i]:ends[i]]`."""
    starts = np.maximum(starts, ends - most)
    lengths = ends - starts
    return id_lists(ids[ranges(starts, lengths)], offsets_of(lengths))
