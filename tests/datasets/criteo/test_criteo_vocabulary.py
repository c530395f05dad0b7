"""Value tests: categories to ids, by frequency against a plain count, by hash to known answers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from recd_dlrm.datasets.criteo.raw_rows import MISSING
from recd_dlrm.datasets.criteo.vocabularies import (
    FrequencyVocabulary,
    HashVocabulary,
    count_categories,
)
from recd_plugins.api.data import KeyCounts


@pytest.mark.parametrize("size", [10, 1_000, 200_000])
def test_counts_add_up_over_blocks(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.integers(0, size, 300_000)
    values[::7] = MISSING
    counts = KeyCounts(np.empty(0, np.int64))
    for block in np.array_split(values, 11):
        count_categories(block, counts)
    expected = Counter(values[values != MISSING].tolist())
    order = sorted(expected, key=lambda value: (-expected[value], value))
    kept = [value for value in order if expected[value] >= 2]
    vocabulary = FrequencyVocabulary(counts, 2)
    assert vocabulary.num_ids == 1 + len(kept)
    assert vocabulary.encode(np.array(kept)).tolist() == list(range(1, 1 + len(kept)))
    others = np.array([MISSING, size, 2**32 - 1])
    assert vocabulary.encode(others).tolist() == [0, 0, 0]


def test_hashed_ids_are_stable_and_even() -> None:
    # Known answers: MurmurHash3's finalizer of 0, 1 and 0xDEADBEEF.
    assert HashVocabulary(2**32 + 1).encode(np.array([0, 1, 0xDEADBEEF, MISSING])).tolist() == [
        1,
        1 + 0x514E28B7,
        1 + 0x0DE5C6A9,
        0,
    ]
    spread = np.bincount(HashVocabulary(101).encode(np.arange(100_000)), minlength=101)[1:]
    assert np.abs(spread - 1_000).max() <= 5 * np.sqrt(1_000)
