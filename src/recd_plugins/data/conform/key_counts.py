"""Counts of keys that stream by, and the keys that occur most."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["KeyCounts"]

Keys = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]


class KeyCounts:
    """Counts of different keys, 16 bytes each, and a value of each key where it has one.

    Blocks are merged once they outweigh what was merged before, so that a key is sorted O(log)
    times.
    """

    def __init__(
        self, keys: Keys, values: pa.Array | None = None, *, pending: int = 1 << 16
    ) -> None:
        """`keys` and `values` are empty, and of the kind that will come; up to `pending` keys wait
        to be merged."""
        self._keys = keys
        self._values = values
        self._counts: I64 = np.empty(0, np.int64)
        self._parts: list[tuple[Keys, I64, pa.Array | None]] = []
        self._size = 0
        self._pending = pending

    def add(self, keys: Keys, counts: I64, values: pa.Array | None = None) -> None:
        """Different keys [K] of a block, how often each occurs, and the value of each."""
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
        """The number of different keys that were merged so far."""
        return len(self._keys)

    @property
    def keys(self) -> Keys:
        """[K] ascending."""
        self._merge()
        return self._keys

    @property
    def counts(self) -> I64:
        """[K] of each of `keys`."""
        self._merge()
        return self._counts

    @property
    def values(self) -> pa.Array:
        """[K] of each of `keys`."""
        self._merge()
        return self._values

    def most_frequent(self, *, least_count: int = 1, most: int | None = None) -> I64:
        """The places among `keys` of those that occur `least_count` times or more, `most` of them:
        the most frequent first, ties by key."""
        counts = self.counts
        order = np.argsort(-counts, kind="stable")
        kept: I64 = order[counts[order] >= least_count][:most]
        return kept
