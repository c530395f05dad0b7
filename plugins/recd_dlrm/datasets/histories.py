"""Histories: for each event a window over the ids of those before it."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recd_dlrm.datasets.columns import id_lists
from recd_dlrm.datasets.draws import I64

__all__ = ["History", "run_starts", "windows"]

History = Literal["frozen", "growing"]
"""frozen: one value for the whole session, so its samples are exact duplicates.
growing: one id more per event, so they are shifted (partial) ones."""


def run_starts(*keys: NDArray[Any]) -> I64:
    """For each of N rows the first row of its run, in which all keys [N] are equal."""
    rows = np.arange(keys[0].size)
    new = np.zeros(rows.size, np.bool_)
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    starts: I64 = np.maximum.accumulate(np.where(new, rows, 0))
    return starts


def windows(ids: I64, starts: I64, ends: I64, most: int) -> pa.Array:
    """A column whose row i is the last `most` of `ids[starts[i]:ends[i]]`."""
    starts = np.maximum(starts, ends - most)
    lengths = ends - starts
    offsets = np.concatenate(([0], lengths.cumsum()))
    positions = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return id_lists(ids[positions], offsets)
