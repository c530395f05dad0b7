"""Counts of keys in a stream, and the most frequent keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["KeyCounts"]

Keys = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]


class KeyCounts:
    """Counts of different keys, 16 bytes each, and optionally a value of each key.

    Blocks are merged once they hold more keys than were merged before, so a key is sorted O(log)
    times.
    """

    def __init__(
        self, keys: Keys, values: pa.Array | None = None, *, pending: int = 1 << 16
    ) -> None:
        """`keys` and `values` are empty arrays of the types to be added; up to `pending` keys wait
        to be merged."""
        self._keys = keys
        self._values = values
        self._counts: I64 = np.empty(0, np.int64)
        self._parts: list[tuple[Keys, I64, pa.Array | None]] = []
        self._size = 0
        self._pending = pending

    def add(self, keys: Keys, counts: I64, values: pa.Array | None = None) -> None:
        """Add the different keys [K] of a block, how often each occurs, and the value of each."""
        self._parts.append((keys, counts, values))
        self._size += len(keys)
        if self._size > max(self._pending, len(self._keys)):
            self._merge()

    def _merge(self) -> None:
        if not self._parts:
            return
        parts = [(self._keys, self._counts, self._values), *self._parts]
        every = np.concatenate([keys for keys, _, _ in parts])
        order = np.argsort(every, kind="stable")
        self._keys, starts = np.unique(every[order], return_index=True)
        counts = np.concatenate([counts for _, counts, _ in parts])[order]
        self._counts = np.add.reduceat(counts, starts) if len(starts) else counts
        if self._values is not None:
            values = pa.concat_arrays([values for _, _, values in parts])
            self._values = values.take(pa.array(order[starts]))
        self._parts, self._size = [], 0

    @property
    def merged(self) -> int:
        """The number of different keys merged so far."""
        return len(self._keys)

    @property
    def keys(self) -> Keys:
        """[K] ascending."""
        self._merge()
        return self._keys

    @property
    def counts(self) -> I64:
        """[K] how often each of `keys` occurs."""
        self._merge()
        return self._counts

    @property
    def values(self) -> pa.Array:
        """[K] the value of each of `keys`."""
        self._merge()
        return self._values

    def most_frequent(self, *, least_count: int = 1, most: int | None = None) -> I64:
        """The places in `keys` of those that occur at least `least_count` times, at most `most` of
        them: the most frequent first, ties by key."""
        counts = self.counts
        order = np.argsort(-counts, kind="stable")
        kept: I64 = order[counts[order] >= least_count][:most]
        return kept
