"""The rows held out for testing: the latest rows, or those with some values of a column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recd_plugins.config import Config, Range
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import hashes, identifies, instants, is_time, missing
from recd_plugins.errors import DataError, RegistryError

__all__ = ["Quantile", "SplitBy"]

SPLIT_SEED = 0x5EED
"""Differs from the seeds of features, so that a split does not depend on the hashes of ids."""
KEPT = 1 << 20
"""The most values from which a quantile is taken."""


@dataclass(frozen=True, kw_only=True)
class SplitBy(Config):
    """The rule that parts train from test."""

    column: str | None = None
    """The column by whose hash rows are divided into train and test. By default their time divides
    them."""
    share: Annotated[float, Range(gt=0, lt=1)] = 0.1
    """The share of the rows, or of the column's values, that form the test split."""

    @classmethod
    def of(cls, text: str, share: float) -> SplitBy:
        """The rule for a text: `time` or `hash:COLUMN`."""
        if text == "time":
            return cls(share=share)
        kind, _, column = text.partition(":")
        if kind == "hash" and column:
            return cls(column=column, share=share)
        raise RegistryError(
            f"{text!r} is neither `time` nor `hash:COLUMN`. Write one of them.", "--split-by"
        )

    def tested(self, values: pa.ChunkedArray, where: str, first: int) -> npt.NDArray[np.bool_]:
        """[N] which rows are for testing, by the values of `column`; a row with a null is not.

        `first` is the number of the first row.
        """
        assert self.column is not None
        limit = np.uint64(min(self.share * 2.0**64, 2.0**64 - 2048))
        parts, kind = [np.zeros(0, np.bool_)], values.type
        if is_time(kind):
            values = pa.chunked_array([instants(one) for one in values.chunks], pa.int64())
        elif not identifies(kind):
            raise Spot(where, self.column).error(
                f"is {kind}, by which --split-by parts no rows",
                "Name a column of integers, texts or times.",
            )
        for chunk in values.chunks:
            found = np.zeros(len(chunk), np.bool_)
            there = ~missing(chunk)
            spot = Spot(where, self.column, chunk=first, kept=np.flatnonzero(there))
            first += len(chunk)
            found[there] = hashes(chunk.filter(pa.array(there)), spot, SPLIT_SEED) < limit
            parts.append(found)
        return np.concatenate(parts)


class Quantile:
    """The time from which on a given share of the rows lies; times may come in any order.

    Every k-th time is kept, and k doubles when too many are kept; up to about a million, all are.
    """

    def __init__(self) -> None:
        self._step = 1
        self._seen = 0
        self._kept: list[npt.NDArray[np.int64]] = []
        self._size = 0
        self._low, self._high = 2**63 - 1, -(2**63)

    def add(self, times: Iterable[Any]) -> None:
        array = np.asarray(times, np.int64)
        if not array.size:
            return
        first = -self._seen % self._step
        self._kept.append(array[first :: self._step])
        self._seen += array.size
        self._size += self._kept[-1].size
        self._low = min(self._low, int(array.min()))
        self._high = max(self._high, int(array.max()))
        while self._size > KEPT:
            whole = np.concatenate(self._kept)[::2]
            self._kept, self._size, self._step = [whole], whole.size, 2 * self._step

    def cut(self, share: float, column: str) -> int:
        """The earliest time of the test rows; raises `DataError` if all rows have one time."""
        if self._low >= self._high:
            raise DataError(
                f"--split-by time: column {column!r} holds only one time. Split by hash:COLUMN."
            )
        times = np.sort(np.concatenate(self._kept))
        place = min(int(np.ceil((1 - share) * times.size)), times.size - 1)
        # If the train rows had this time too, it would be on both sides: take the next time, if
        # there is one.
        cut = int(times[place])
        if cut == self._low:
            cut = int(times[np.searchsorted(times, cut, side="right")]) if cut < times[-1] else 0
            cut = cut or self._high
        return cut
