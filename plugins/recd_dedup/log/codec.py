"""Inference and event messages as bytes, many at a time.

Session id and timestamp are the log's own (`MESSAGES`); the bytes are, little-endian:

    u8 version (1)   u8 kind   u16 0   u32 layout   i64 request id
    kind 1, an inference's features; D dense and F sparse ones, named by the schema:
        bit [D + F], set where a feature is missing, padded to bytes
        f32 dense [D]   u32 length [F]   zeros up to a multiple of 8   i64 ids, feature by feature
    kind 2, an event: nothing more; its layout is 0

`layout` is the CRC-32 of the features' names, so that no reader confuses features.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeVar
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recd_dedup.hashing import I64
from recd_plugins.api import DataError
from recd_plugins.api.data import IDS, MESSAGES, Schema

__all__ = [
    "NO_KEY",
    "DecodedMessages",
    "Decoder",
    "Events",
    "MessageCodec",
    "MessageError",
    "MessageHeads",
    "Requests",
    "flat",
    "id_of_bytes",
    "lying_at",
    "read_by",
]

Bytes = NDArray[np.uint8]
T = TypeVar("T")

VERSION, INFERENCE, EVENT = 1, 1, 2
OTHERS = (
    "If other programs wrote the log, `messages` of the dataset must describe how to read their "
    "JSON."
)
HEAD = np.dtype(
    [("version", "u1"), ("kind", "u1"), ("zero", "<u2"), ("layout", "<u4"), ("request_id", "<i8")]
)


def id_of_bytes(key: bytes) -> int:
    """The 64-bit number that stands for a key: the key itself if it has 8 bytes, else its hash."""
    if len(key) != 8:
        key = blake2b(key, digest_size=8).digest()
    return int.from_bytes(key, "little", signed=True)


NO_KEY = id_of_bytes(b"")
"""The session of a message without a key, or with an empty one."""


class Requests(NamedTuple):
    """N inferences: their ids [N], their times [N] in ms, and rows with the schema's columns,
    including the label if the messages have it.

    A feature that a message lacks is null.
    """

    ids: I64
    timestamps: I64
    rows: pa.Table


class Events(NamedTuple):
    """N events: the requests that they answer [N], and their times [N] in ms."""

    ids: I64
    timestamps: I64


class MessageHeads(NamedTuple):
    """N messages: the ids of their requests [N], and whether each is an event [N] or a request [N].

    A message that is neither is left out.
    """

    ids: I64
    events: NDArray[np.bool_]
    requests: NDArray[np.bool_]


class DecodedMessages(NamedTuple):
    requests: Requests
    events: Events


class MessageError(DataError):
    """A message is not one that its decoder knows."""


class Decoder(Protocol):
    """Reads what a log's messages say; raises `MessageError` for a message that it does not know,
    whatever the other messages are."""

    @property
    def schema(self) -> Schema:
        """The schema of the samples, whose sessions and times it names."""

    def heads(self, messages: pa.RecordBatch) -> MessageHeads:
        """Which messages are requests and which are events, without features."""

    def decode(self, messages: pa.RecordBatch) -> DecodedMessages:
        """The requests and the events among messages, each in order."""


WHERE = b"where"
"""The key of a batch's place in its metadata."""


def lying_at(where: str, messages: pa.RecordBatch) -> pa.RecordBatch:
    """The messages, with the place where they begin, in words, for errors."""
    return messages.replace_schema_metadata({WHERE: where})


def read_by(
    read: Callable[[pa.RecordBatch], T],
    messages: pa.RecordBatch,
    rows: I64 | None = None,
    *,
    otherwise: str = "",
) -> T:
    """What `read` makes of messages, or of these rows of them. Its `MessageError` says where the
    message lies: by the place in their metadata, or else by `otherwise`."""
    try:
        return read(messages if rows is None else messages.take(pa.array(rows)))
    except MessageError:
        where = (messages.schema.metadata or {}).get(WHERE, otherwise.encode()).decode()
        among = range(messages.num_rows) if rows is None else rows.tolist()
        for row in among if where else ():
            try:
                read(messages.slice(row, 1))
            except MessageError as error:
                raise DataError(f"{where}, message {row + 1:,}: {error}") from None
        raise


class MessageCodec:
    """Packs messages with a schema's features; the schema must name sessions and timestamps."""

    def __init__(self, schema: Schema) -> None:
        if schema.session_id is None or schema.timestamp is None:
            raise DataError(
                "a log needs sessions and times, but the schema names no "
                f"{'session_id' if schema.session_id is None else 'timestamp'} column. Name one."
            )
        if (
            len(schema.targets) > 1
            or schema.sample_weight
            or schema.vectors
            or schema.weights_names
        ):
            raise DataError(
                "a log has one label, an event or none, and features that are one float or a list "
                "of ids; the schema has several labels, sample weights, vectors or scored ids. "
                "Leave these out of it."
            )
        names = [schema.dense, schema.sparse_names]
        features = len(schema.dense) + len(schema.sparse)
        self.schema = schema
        self.layout = crc32(json.dumps(names).encode())
        self._keys = (schema.session_id, schema.timestamp)
        self._missing = HEAD.itemsize
        self._dense = self._missing + -(-features // 8)
        self._lengths = self._dense + 4 * len(schema.dense)
        self._fixed = -(-(self._lengths + 4 * len(schema.sparse)) // 8) * 8
        """Bytes before the ids; the lines above have the places where missing, dense and lengths
        begin."""

    def requests(self, ids: I64, rows: pa.Table) -> pa.RecordBatch:
        """One message per row; a null is a missing feature. ids [N], rows [N]."""
        n, schema = rows.num_rows, self.schema
        columns = {name: rows[name].combine_chunks() for name in rows.column_names}
        dense = [columns[name] for name in schema.dense]
        sparse = [columns[name] for name in schema.sparse_names]
        fixed = np.zeros((n, self._fixed), np.uint8)
        fixed[:, : self._missing] = _heads(INFERENCE, self.layout, ids)
        if dense or sparse:
            missing = np.stack([_nulls(column) for column in (*dense, *sparse)], axis=1)
            packed = np.packbits(missing, axis=1, bitorder="little")
            fixed[:, self._missing : self._dense] = packed
        if dense:
            values = [pc.fill_null(pc.cast(column, pa.float32()), 0).to_numpy() for column in dense]
            fixed[:, self._dense : self._lengths] = _bytes(np.stack(values, axis=1).astype("<f4"))
        lengths = np.zeros((n, len(sparse)), np.int64)
        for i, column in enumerate(sparse):
            lengths[:, i] = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        if sparse:
            end = self._lengths + 4 * len(sparse)
            fixed[:, self._lengths : end] = _bytes(lengths.astype("<u4"))
        ends = self._fixed // 8 + lengths.sum(axis=1)
        starts = np.concatenate(([0], ends.cumsum()))
        words = np.empty(starts[-1], "<i8")
        words[_ranges(starts[:-1], np.full(n, self._fixed // 8))] = fixed.view("<i8").ravel()
        begins = starts[:-1] + self._fixed // 8
        for i, column in enumerate(sparse):
            words[_ranges(begins, lengths[:, i])] = pc.list_flatten(column).to_numpy()
            begins = begins + lengths[:, i]
        session_id, timestamp = (columns[name] for name in self._keys)
        return _messages(session_id, timestamp, starts * 8, words)

    def events(self, ids: I64, session_ids: I64, timestamps: I64) -> pa.RecordBatch:
        """One message per event; each [N]."""
        starts = np.arange(ids.size + 1) * HEAD.itemsize
        return _messages(pa.array(session_ids), pa.array(timestamps), starts, _heads(EVENT, 0, ids))

    def heads(self, messages: pa.RecordBatch) -> MessageHeads:
        """Which messages are events, and the requests that they belong to, without features."""
        lengths = pc.binary_length(messages["message"]).to_numpy()
        if (lengths < HEAD.itemsize).any():
            raise MessageError(
                f"a log message of {lengths.min()} bytes is neither inference nor event. {OTHERS}"
            )
        heads = pc.binary_slice(messages["message"], 0, HEAD.itemsize)
        head = flat(heads).view(HEAD)
        inference, event = head["kind"] == INFERENCE, head["kind"] == EVENT
        strange = (head["version"] != VERSION) | ~(inference | event)
        if strange.any():
            first = head[strange][0]
            raise MessageError(
                f"a log message says version {first['version']}, kind {first['kind']}; known are "
                f"version {VERSION}, kinds {INFERENCE} and {EVENT}. {OTHERS}"
            )
        if (keyless := messages["session_id"].to_numpy() == NO_KEY).any():
            time = messages["timestamp"].to_numpy()[keyless][0]
            raise MessageError(
                f"a log message of time {time} has no key, which is its session. Have its writer "
                "key it, or take it out of the log."
            )
        if (head["layout"][inference] != self.layout).any():
            raise MessageError(
                "a log message was written with other features than "
                f"{[*self.schema.dense, *self.schema.sparse_names]}. Read it with its own schema."
            )
        return MessageHeads(head["request_id"].astype(np.int64), event, inference)

    def decode(self, messages: pa.RecordBatch) -> DecodedMessages:
        """The inferences and the events among messages, each in order."""
        ids, event, inference = self.heads(messages)
        times = messages["timestamp"].to_numpy()
        found = messages.filter(pa.array(inference)) if event.any() else messages
        return DecodedMessages(
            Requests(ids[inference], times[inference], self._rows(found)),
            Events(ids[event], times[event]),
        )

    def _rows(self, messages: pa.RecordBatch) -> pa.Table:
        n, schema = messages.num_rows, self.schema
        sizes = pc.binary_length(messages["message"]).to_numpy().astype(np.int64)
        if n and (sizes.min() < self._fixed or (sizes % 8).any()):
            raise MessageError(f"an inference of {sizes.min()} bytes is cut short.")
        words = flat(messages["message"]).view("<i8")
        starts = np.concatenate(([0], sizes.cumsum() // 8))
        fixed = words[_ranges(starts[:-1], np.full(n, self._fixed // 8))].view(np.uint8)
        fixed = fixed.reshape(n, self._fixed)
        bits = np.unpackbits(fixed[:, self._missing : self._dense], axis=1, bitorder="little")
        missing = bits.astype(bool).T
        dense = fixed[:, self._dense : self._lengths].copy().view("<f4")
        end = self._lengths + 4 * len(schema.sparse)
        lengths = fixed[:, self._lengths : end].copy().view("<u4").astype(np.int64)
        if (starts[:-1] + self._fixed // 8 + lengths.sum(axis=1) != starts[1:]).any():
            raise MessageError("an inference's lengths do not add up to its bytes.")
        columns = dict(zip(self._keys, messages.columns[:2], strict=True))
        for i, name in enumerate(schema.dense):
            columns[name] = pa.array(dense[:, i], pa.float32(), mask=missing[i])
        begins = starts[:-1] + self._fixed // 8
        for i, name in enumerate(schema.sparse_names):
            offsets = np.concatenate(([0], lengths[:, i].cumsum())).astype(np.int32)
            ids = pa.array(words[_ranges(begins, lengths[:, i])])
            lacks = pa.array(missing[len(schema.dense) + i])
            columns[name] = pa.ListArray.from_arrays(offsets, ids, type=IDS, mask=lacks)
            begins = begins + lengths[:, i]
        return pa.table(columns)


def _heads(kind: int, layout: int, ids: I64) -> Bytes:
    """The first 16 bytes of each message; ids [N] to [N, 16]."""
    heads = np.zeros(ids.size, HEAD)
    heads["version"], heads["kind"], heads["layout"] = VERSION, kind, layout
    heads["request_id"] = ids
    return _bytes(heads.reshape(-1, 1))


def _bytes(rows: NDArray[np.generic]) -> Bytes:
    """[N, M] numbers to [N, bytes]."""
    found: Bytes = np.ascontiguousarray(rows).view(np.uint8)
    return found


def _messages(
    session_ids: pa.Array, timestamps: pa.Array, starts: I64, data: NDArray[np.generic]
) -> pa.RecordBatch:
    n = starts.size - 1
    if starts[-1] >= 1 << 31:
        raise DataError(
            f"{n:,} messages of {starts[-1]:,} bytes are too many for one call: pass fewer."
        )
    offsets = pa.py_buffer(starts.astype(np.int32))
    message = pa.Array.from_buffers(pa.binary(), n, [None, offsets, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays(
        [session_ids.cast(pa.int64()), timestamps.cast(pa.int64()), message], schema=MESSAGES
    )


def flat(messages: pa.Array) -> Bytes:
    """The bytes of binary values, end to end."""
    _, offsets, data = messages.buffers()
    if not len(messages) or data is None:
        return np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[messages.offset :]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[len(messages)]]


def _nulls(column: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_null(column).to_numpy(zero_copy_only=False)
    return found


def _ranges(starts: I64, lengths: I64) -> I64:
    """start, start + 1, ... of each range, one range after the other; [N], [N] to [sum]."""
    ends = lengths.cumsum()
    total = int(ends[-1]) if ends.size else 0
    found: I64 = np.arange(total) + np.repeat(starts - ends + lengths, lengths)
    return found
