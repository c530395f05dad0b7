"""Rung 1 (values) and 2 (properties): the hash and the shards that files on disk rest on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_messages import messages_of, numbered, rows_of

from recd_dedup.hashing import mix, uniforms
from recd_dedup.log.routing import message_shards, routed, session_shards

INT64 = st.integers(-(2**63), 2**63 - 1)


def test_the_hash_is_splitmix64_and_stays_so():
    """SplitMix64's own outputs: the finaliser of seed + k * golden gamma; seeds 0 and 1234567."""
    golden = 0x9E3779B97F4A7C15
    seeds = np.array([golden, 1234567 + golden, (1234567 + 2 * golden) % 2**64], np.uint64)
    assert mix(seeds).tolist() == [
        0xE220A8397B1DCDAF,
        6457827717110365317,
        3203168211198807973,
    ]


def test_shards_never_move():
    """Written down once; a log on disk is lost to its readers where these change."""
    sessions = np.array([0, 1, -1, 42, 2**63 - 1, -(2**63)])
    assert session_shards(sessions, 64).tolist() == [0, 21, 45, 41, 22, 9]
    assert message_shards(pa.array([b"", b"a", "löwe".encode()]), 64).tolist() == [0, 45, 19]


def test_sessions_spread_evenly():
    counts = np.bincount(session_shards(np.arange(64_000), 64), minlength=64)
    assert counts.size == 64
    assert abs(counts - 1000).max() < 150  # 4.7 deviations of a Poisson count


@given(st.lists(INT64, max_size=30), st.integers(1, 65_536))
def test_a_session_has_one_shard(sessions, shards):
    ids = np.array(sessions, np.int64)
    found = session_shards(ids, shards)
    assert ((found >= 0) & (found < shards)).all()
    assert found.tolist() == [
        int(session_shards(ids[i : i + 1], shards)[0]) for i in range(len(ids))
    ]


@pytest.mark.parametrize("route", ["session", "message"])
def test_parts_hold_all_messages_in_their_order(route):
    rows = numbered(200)
    parts = routed(messages_of(rows).slice(50, 100), route, 4)
    assert [shard for shard, _ in parts] == [0, 1, 2, 3]
    found = [rows_of([part]) for _, part in parts]
    assert all(part == sorted(part, key=lambda row: row[1]) for part in found)
    assert sorted([row for part in found for row in part], key=lambda row: row[1]) == rows[50:150]
    shards_of = {row[0]: set() for row in rows}
    for shard, part in zip(range(4), found, strict=True):
        for row in part:
            shards_of[row[0]].add(shard)
    assert all((len(shards) == 1) == (route == "session") for shards in shards_of.values())


@pytest.mark.parametrize("route", ["session", "message"])
def test_no_messages_have_no_parts(route):
    assert routed(messages_of([]), route, 4) == []


def test_uniforms_depend_on_seed_purpose_and_id_alone():
    ids = np.arange(1000)
    drawn = uniforms(1, "lost", ids)
    assert (drawn[::-1] == uniforms(1, "lost", ids[::-1])).all()
    assert ((drawn >= 0) & (drawn < 1)).all()
    assert abs(drawn.mean() - 0.5) < 0.05
    for other in (uniforms(2, "lost", ids), uniforms(1, "late", ids)):
        assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.15
