"""Category to index: by how often it occurs, or by a hash. Index 0 is for what is missing."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from recd_dlrm.datasets.columns import I64
from recd_dlrm.datasets.criteo.rows import MISSING

__all__ = ["CategoryCounts", "FrequencyVocabulary", "HashVocabulary", "Vocabulary"]


class Vocabulary(Protocol):
    """One feature's way from values in [0, 2^32), or `MISSING`, to [0, num_ids)."""

    @property
    def num_ids(self) -> int: ...
    def encode(self, values: I64) -> I64:
        """[B] to [B]."""


class CategoryCounts:
    """How often each value occurs, added up in blocks; 16 bytes per distinct value.

    Blocks are merged once they outweigh what was merged before, so that a value is
    sorted O(log) times.
    """

    def __init__(self) -> None:
        self._values = self._counts = np.empty(0, np.int64)
        self._pending: list[tuple[I64, I64]] = []
        self._pending_size = 0

    def add(self, values: I64) -> None:
        found, counts = np.unique(values[values != MISSING], return_counts=True)
        self._pending.append((found, counts))
        self._pending_size += len(found)
        if self._pending_size > max(len(self._values), 1 << 16):
            self._merge()

    def _merge(self) -> None:
        parts = [(self._values, self._counts), *self._pending]
        values, counts = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(values)
        self._values, starts = np.unique(values[order], return_index=True)
        self._counts = np.add.reduceat(counts[order], starts) if len(starts) else counts
        self._pending, self._pending_size = [], 0

    def vocabulary(self, threshold: int) -> FrequencyVocabulary:
        """Of the values that occur `threshold` times or more."""
        self._merge()
        kept = self._counts >= threshold
        return FrequencyVocabulary(self._values[kept], self._counts[kept])


class FrequencyVocabulary:
    """Index 1 is the most frequent value, 2 the next, ties by value; all others are 0."""

    def __init__(self, values: I64, counts: I64) -> None:
        """`values` [V] ascend; `counts` [V]."""
        order = np.argsort(-counts, kind="stable")
        ids = np.empty(len(values), np.int64)
        ids[order] = np.arange(1, len(values) + 1)
        # A last value that no category has, so that every search ends inside.
        self._values = np.append(values, np.iinfo(np.int64).max)
        self._ids = np.append(ids, 0)

    @property
    def num_ids(self) -> int:
        return len(self._ids)

    def encode(self, values: I64) -> I64:
        places = np.searchsorted(self._values, values)
        return np.where(self._values[places] == values, self._ids[places], 0)


class HashVocabulary:
    """1 + hash(value) modulo (num_ids - 1), the same on any machine; missing is 0.

    The hash is MurmurHash3's finalizer, which permutes the 32-bit values.
    """

    def __init__(self, num_ids: int) -> None:
        self._num_ids = num_ids

    @property
    def num_ids(self) -> int:
        return self._num_ids

    def encode(self, values: I64) -> I64:
        h = values.astype(np.uint32)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
        return np.where(values == MISSING, 0, 1 + h.astype(np.int64) % (self._num_ids - 1))
