"""Counts how many rows of a table are there more than once, by a sample in bounded memory.

Rows are drawn by what is in them: a row that is drawn is drawn each time that it comes. When more
come than are kept, half of those that are kept are let go, and as many later ones passed over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recd_plugins.data.selection import mixed

__all__ = ["Prints", "RepeatedRows"]

VALUES = 2**17
"""Values of the rows that are kept: many rows, where a table has few columns."""
MOST, LEAST = 2**13, 2**9
"""Bounds of how many different rows are kept."""
AGAIN = 2
"""So many times as many rows are looked at, before fewer of them are."""
LEVELS = 60
"""How often the sample is halved at most."""
DRAWN_BY = 16
"""Columns by which rows are drawn: the first ones that are no lists."""
TAIL = 12
"""Bytes of a text by which rows are drawn: its last ones, in which times and UUIDs differ."""
SEED = 0x9E3779B97F4A7C15
"""A number that is not 0, so that a row of zeros is drawn no more often than others."""
ENOUGH = 100
"""Different rows from which a share is reported."""

I64 = NDArray[np.int64]
Prints = list[tuple[int, bytes]]
"""For each row that is drawn, the number by which it is drawn, and a hash of all its values."""


class RepeatedRows:
    """The rows of a table that are in the sample, and how often each was there."""

    def __init__(self, columns: int) -> None:
        self._limit = min(MOST, max(LEAST, VALUES // max(columns, 1)))
        self._level = 0
        """Rows are kept whose number has so many zeros in front."""
        self._counts: Counter[tuple[int, bytes]] = Counter()
        self._seen = 0
        """Rows that were counted since the level last rose."""

    def drawn(self, rows: pa.Table, columns: Sequence[str]) -> Prints:
        """The rows of a block that are drawn, in any thread, by the first of the columns."""
        keys, level = _keys(rows, columns), self._level
        places = np.flatnonzero(keys < _end(level))
        while level < LEVELS and len(places) > AGAIN * self._limit:
            level += 1
            places = np.flatnonzero(keys < _end(level))
        values = [_values(rows[name].take(pa.array(places))) for name in columns]
        prints = [
            blake2b(repr(row).encode(errors="surrogatepass"), digest_size=8).digest()
            for row in zip(*values, strict=True)
        ]
        return list(zip(keys[places].tolist(), prints, strict=True)) if prints else []

    def add(self, prints: Prints) -> None:
        """Count rows that were drawn, those of one block after those of another."""
        for one in prints:
            if one[0] < _end(self._level):
                self._counts[one] += 1
                self._seen += 1
                while self._level < LEVELS and self._is_full():
                    self._level += 1
                    self._seen = 0
                    end = _end(self._level)
                    self._counts = Counter({k: n for k, n in self._counts.items() if k[0] < end})

    def share(self) -> float:
        """The share of rows that were there before; 0 if too few were drawn to say so."""
        if len(self._counts) < ENOUGH:
            return 0.0
        return 1 - len(self._counts) / self._counts.total()

    def times(self) -> int:
        """How many times the whole is there: a number of which all rows' numbers are multiples.

        Where rows repeat by themselves, as those of few columns do, it is 1.
        """
        return math.gcd(*self._counts.values()) if len(self._counts) >= ENOUGH else 1

    def _is_full(self) -> bool:
        return len(self._counts) > self._limit or self._seen > AGAIN * self._limit


def _end(level: int) -> int:
    """The first number that is not drawn."""
    return 1 << (63 - level)


def _keys(rows: pa.Table, columns: Sequence[str]) -> I64:
    """A number in [0, 2^63) for each row, the same for the same row."""
    keys = np.full(rows.num_rows, SEED, np.uint64)
    by = 0
    for name in columns:
        parts = [_numbers(chunk) for chunk in rows[name].chunks]
        if by < DRAWN_BY and all(part is not None for part in parts):
            whole = [part for part in parts if part is not None]
            keys = mixed(keys ^ np.concatenate([np.zeros(0, np.uint64), *whole]))
            by += 1
    return (keys >> np.uint64(1)).astype(np.int64)


def _numbers(column: pa.Array) -> NDArray[np.uint64] | None:
    """A number for each value of a column, the same for the same value; None for a type that has
    none at hand."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind) or pa.types.is_boolean(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(kind) and kind.bit_width == 64:
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type):
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(numbers.astype(np.uint64))
    if pa.types.is_floating(kind):
        whole = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        return np.asarray((whole + 0.0).view(np.uint64))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return _of_tails(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _numbers(pc.list_value_length(column))
    return None


def _of_tails(column: pa.Array) -> NDArray[np.uint64]:
    """A number for each text, of its length and its last bytes."""
    column = column.cast(pa.large_binary()).fill_null(b"")
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    text = (
        np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    )
    ends, lengths = bounds[1:], np.diff(bounds)
    numbers = lengths.astype(np.uint64)
    for back in range(1, TAIL + 1):
        bytes_ = np.where(lengths >= back, text[np.maximum(ends - back, 0)], 0)
        numbers = numbers * np.uint64(257) + bytes_.astype(np.uint64)
    return numbers


def _values(column: pa.ChunkedArray) -> list[object]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):  # as of a time that Python has not
        return [hash(one) for one in column]
