"""Rung 1 (values) and 2 (properties): messages to bytes and back."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_messages import messages_of

from recd_dedup.log.codec import MessageCodec
from recd_plugins.data.schema import IDS, Schema, SparseFeature
from recd_plugins.errors import DataError

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)


def schema_of(dense: int, sparse: int) -> Schema:
    return Schema(
        dense=tuple(f"größe {i}" for i in range(dense)),
        sparse=tuple(SparseFeature(name=f"ids {i}", num_ids=2**62) for i in range(sparse)),
    )


def rows_of(schema: Schema, rows) -> pa.Table:
    """Rows are (session, timestamp, dense values, id lists); None is a missing feature."""
    columns = {
        "session_id": pa.array([row[0] for row in rows], pa.int64()),
        "timestamp": pa.array([row[1] for row in rows], pa.int64()),
    }
    for i, name in enumerate(schema.dense):
        columns[name] = pa.array([row[2][i] for row in rows], pa.float32())
    for i, name in enumerate(schema.sparse_names):
        columns[name] = pa.array([row[3][i] for row in rows], IDS)
    return pa.table(columns)


@st.composite
def batches(draw):
    dense, sparse = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    ids = st.none() | st.lists(INT64, max_size=4)
    row = st.tuples(
        INT64,
        INT64,
        st.lists(st.none() | FLOAT32, min_size=dense, max_size=dense),
        st.lists(ids, min_size=sparse, max_size=sparse),
    )
    schema = schema_of(dense, sparse)
    rows = draw(st.lists(row, max_size=6))
    requests = draw(st.lists(INT64, min_size=len(rows), max_size=len(rows)))
    return schema, np.array(requests, np.int64), rows_of(schema, rows)


@given(batches())
def test_rows_become_messages_and_rows_again(batch):
    schema, ids, rows = batch
    codec = MessageCodec(schema)
    requests, events = codec.decode(codec.requests(ids, rows))
    assert requests.ids.tolist() == ids.tolist()
    assert requests.rows.equals(rows)
    assert events.ids.size == 0


@given(batches(), st.data())
def test_inferences_and_events_mix(batch, data):
    schema, ids, rows = batch
    codec = MessageCodec(schema)
    answered = np.array(data.draw(st.lists(INT64, max_size=5)), np.int64)
    events = codec.events(answered, answered // 2, answered // 3)
    mixed = pa.concat_batches([events, codec.requests(ids, rows)])
    order = data.draw(st.permutations(range(mixed.num_rows)))
    decoded = codec.decode(mixed.take(pa.array(order, pa.int64())))
    kept = [i - answered.size for i in order if i >= answered.size]
    assert decoded.requests.ids.tolist() == ids[kept].tolist()
    assert decoded.requests.rows.equals(rows.take(pa.array(kept, pa.int64())))
    expected = [int(answered[i]) for i in order if i < answered.size]
    assert decoded.events.ids.tolist() == expected
    assert decoded.events.timestamps.tolist() == [answer // 3 for answer in expected]


def test_the_bytes_are_as_documented():
    schema = schema_of(1, 2)
    codec = MessageCodec(schema)
    rows = rows_of(schema, [(7, 8, [1.5], [[3, -4], None])])
    (message,) = codec.requests(np.array([9]), rows)["message"].to_pylist()
    fixed = struct.pack("<BBHIqBfII", 1, 1, 0, codec.layout, 9, 0b100, 1.5, 2, 0)
    assert message == fixed.ljust(32, b"\0") + struct.pack("<qq", 3, -4)
    (event,) = codec.events(np.array([9]), np.array([7]), np.array([8]))["message"].to_pylist()
    assert event == struct.pack("<BBHIq", 1, 2, 0, 0, 9)


def test_slices_are_only_what_they_show():
    schema = schema_of(2, 2)
    codec = MessageCodec(schema)
    rows = rows_of(schema, [(n, n, [n, None], [[n] * n, [n]]) for n in range(10)])
    messages = codec.requests(np.arange(10), rows)
    assert codec.decode(messages.slice(3, 4)).requests.rows.equals(rows.slice(3, 4))
    again = codec.requests(np.arange(3, 7), rows.slice(3, 4))
    assert again.equals(messages.slice(3, 4))
    parts = pa.concat_tables([rows.slice(0, 5), rows.slice(5)])
    assert codec.requests(np.arange(10), parts).equals(messages)


def test_a_log_needs_sessions_and_times():
    with pytest.raises(DataError, match="the schema names no session_id column"):
        MessageCodec(Schema(session_id=None))
    with pytest.raises(DataError, match="the schema names no timestamp column"):
        MessageCodec(Schema(timestamp=None))


def test_messages_of_other_features_are_reported():
    schema, other = schema_of(1, 1), schema_of(1, 2)
    rows = rows_of(other, [(1, 2, [0.5], [[1], [2]])])
    messages = MessageCodec(other).requests(np.array([1]), rows)
    with pytest.raises(DataError, match=r"with other features than \['größe 0', 'ids 0'\]"):
        MessageCodec(schema).decode(messages)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "a log message of 0 bytes is neither"),
        (b"x" * 15, "a log message of 15 bytes is neither"),
        (b"hello, this is not ours", "says version 104, kind 101"),
        (struct.pack("<BBHIq", 1, 3, 0, 0, 1), "says version 1, kind 3"),
        (struct.pack("<BBHIq", 2, 1, 0, 0, 1), "says version 2, kind 1"),
    ],
)
def test_what_is_no_message(message, reason):
    with pytest.raises(DataError, match=reason):
        MessageCodec(schema_of(1, 1)).decode(messages_of([(0, 0, message)]))


def test_a_message_cut_anywhere_is_reported():
    schema = schema_of(1, 2)
    codec = MessageCodec(schema)
    rows = rows_of(schema, [(7, 8, [1.5], [[3, 4], [5]])])
    (message,) = codec.requests(np.array([9]), rows)["message"].to_pylist()
    for size in range(len(message)):
        with pytest.raises(DataError, match=r"cut short|neither|do not add up"):
            codec.decode(messages_of([(0, 0, message[:size])]))
    with pytest.raises(DataError, match="do not add up"):
        codec.decode(messages_of([(0, 0, message + bytes(8))]))
