"""Histories: for each event a window over the ids of those before it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from recd_dlrm.datasets.columns import I64, id_lists, offsets_of, ranges

__all__ = ["History", "windows"]

History = Literal["frozen", "growing"]
"""frozen: one value for the whole session, so its samples are exact duplicates.
growing: one id more per event, so they are shifted (partial) ones."""


def windows(ids: I64, starts: I64, ends: I64, most: int) -> pa.Array:
    """A column whose row i is the last `most` of `ids[starts[i]:ends[i]]`."""
    starts = np.maximum(starts, ends - most)
    lengths = ends - starts
    return id_lists(ids[ranges(starts, lengths)], offsets_of(lengths))
