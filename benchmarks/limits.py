"""The work that nobody can avoid, which bounds figures: computed from counts, or measured together
with the figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.data.table import Table
from recd_plugins.sparse.rows.repeats import repeats

__all__ = [
    "copies",
    "decoding",
    "entropy",
    "least_step",
    "link_seconds",
    "one_after_another",
    "reads",
    "without_repeats",
]

Numbers = npt.NDArray[Any]

DEDUPLICATED = frozenset({"pooling", "lookup", "exchange", "exposed"})
"""The parts of a step that take less time if fewer ids are left."""


def least_step(parts: Mapping[str, float], deduplicated: float, factor: float) -> float:
    """The least share of a plain step's time that a step on unique samples can take.

    `parts` is the plain step's breakdown. Pooling works only on deduplicated features, so it takes
    1 / `factor` of its time. Lookups and exchanges move the share `deduplicated` of their ids
    divided by the factor, and the other ids unchanged. Everything else stays the same.
    """
    left = 1 - deduplicated + deduplicated / factor
    least = 0.0
    for part, time in parts.items():
        least += time * (1 / factor if part == "pooling" else left if part in DEDUPLICATED else 1)
    return least / sum(parts.values())


def link_seconds(num_bytes: float, mbit: float) -> float:
    """The time that `num_bytes` bytes take on a link of `mbit` megabits per second."""
    return num_bytes * 8 / (mbit * 1e6)


def entropy(share: float) -> float:
    """The bits per row that are needed to say whether it is in a given share of all rows."""
    if share in (0, 1):
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def copies(arrays: Sequence[Numbers]) -> Callable[[], None]:
    """A call that copies all arrays into memory that exists already."""
    pairs = [(np.empty_like(source), source) for source in arrays]

    def copy() -> None:
        for target, source in pairs:
            np.copyto(target, source)

    return copy


def reads(arrays: Sequence[Numbers]) -> Callable[[], None]:
    """A call that reads all arrays once, at the rate at which numpy finds the largest number."""
    given = [array for array in arrays if array.size]

    def read() -> None:
        for array in given:
            array.max()

    return read


def one_after_another(*calls: Callable[[], object]) -> Callable[[], None]:
    """A call that makes all of these calls."""

    def run() -> None:
        for call in calls:
            call()

    return run


def decoding(table: Table, columns: Sequence[str]) -> Callable[[], int]:
    """A call that has pyarrow decode the columns of each row group, on its threads, and returns the
    number of rows."""

    def decode() -> int:
        rows = 0
        for file in table.files:
            with pq.ParquetFile(file) as opened:
                for group in range(opened.num_row_groups):
                    rows += opened.read_row_group(group, columns=list(columns)).num_rows
        return rows

    return decode


def without_repeats(values: pa.Array) -> pa.Array:
    """The values without those that equal the previous value: numbers, or lists of numbers."""
    if len(values) < 2:
        return values
    return values.filter(pa.array(np.concatenate([[True], ~_repeats(values)])))


def _repeats(values: pa.Array) -> npt.NDArray[np.bool_]:
    """[N - 1]: whether each value after the first equals the previous one."""
    if not pa.types.is_list(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
        same: npt.NDArray[np.bool_] = numbers[1:] == numbers[:-1]
        return same
    return repeats(values.values.to_numpy(), values.offsets.to_numpy())[1:]
