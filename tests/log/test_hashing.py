"""Rung 1 and 2 (values and properties): session ids as hashes, the same for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recd_dedup.hashing import bucket_of, mix, salt

IDS = st.integers(-(2**63), 2**63 - 1)


def test_they_are_those_of_splitmix64():
    """The first outputs of SplitMix64 from state 0, whose counter grows by the golden ratio."""
    golden = 0x9E3779B97F4A7C15
    counters = np.array([golden, 2 * golden % 2**64], np.uint64)
    assert mix(counters).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    assert salt(0, "downsample_sessions") == salt(0, "downsample_sessions")


@given(st.sets(IDS, min_size=2, max_size=50), st.integers(0, 2**64 - 1))
def test_no_two_sessions_share_one(ids, salt):
    assert len(set(mix(np.array(list(ids)), salt).tolist())) == len(ids)


@given(st.lists(IDS, min_size=1, max_size=50), st.integers(1, 5_000))
def test_buckets_are_ranges_of_hashes(ids, n_buckets):
    hashes = mix(np.array(ids))
    buckets = bucket_of(hashes, n_buckets)
    assert np.all((buckets >= 0) & (buckets < n_buckets))
    assert np.all(np.diff(buckets[hashes.argsort()]) >= 0)


@pytest.mark.parametrize("stride", [1, 1 << 20, 1 << 40])
def test_ids_at_any_stride_spread_evenly(stride):
    counts = np.bincount(bucket_of(mix(np.arange(64_000) * stride), 64))
    assert abs(counts - 1_000).max() < 5 * 1_000**0.5  # 5 standard deviations
