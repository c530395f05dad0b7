"""Criteo's categories as indices: by how often the train rows have them, or by their hash."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from recd_dlrm.datasets.criteo.raw_rows import MISSING
from recd_dlrm.datasets.flat_columns import I64
from recd_plugins.api.data import KeyCounts

__all__ = ["FrequencyVocabulary", "HashVocabulary", "Vocabulary", "count_categories"]


class Vocabulary(Protocol):
    """Maps the values of one feature, in [0, 2^32) or `MISSING`, to [0, num_ids)."""

    @property
    def num_ids(self) -> int: ...
    def encode(self, values: I64) -> I64:
        """[B] to [B]."""


class FrequencyVocabulary:
    """Index 1 is the most frequent value, 2 the next, and ties are ordered by value. Values that
    occur fewer than `threshold` times, and all others, are 0."""

    def __init__(self, counts: KeyCounts, threshold: int) -> None:
        kept = counts.most_frequent(least_count=threshold)
        by_value = np.argsort(kept)  # keys ascend, and so do their places
        # The last value is larger than any category, so that every search ends inside.
        self._values = np.append(counts.keys[kept[by_value]], np.iinfo(np.int64).max)
        self._ids = np.append(1 + by_value, 0)

    @property
    def num_ids(self) -> int:
        return len(self._ids)

    def encode(self, values: I64) -> I64:
        places = np.searchsorted(self._values, values)
        return np.where(self._values[places] == values, self._ids[places], 0)


def count_categories(values: I64, counts: KeyCounts) -> None:
    """Count the values [B] of one feature that are not missing."""
    counts.add(*np.unique(values[values != MISSING], return_counts=True))


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
