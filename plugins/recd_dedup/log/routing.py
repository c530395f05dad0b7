"""The log shard of each message: by its session (O1), or by the message itself (the baseline)."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pyarrow as pa

from recd_dedup.hashing import I64, bucket_of, mix
from recd_plugins.api import DataError, so_many
from recd_plugins.api.data import MESSAGES, LogRoute

__all__ = ["check_messages", "message_shards", "routed", "session_shards"]


def check_messages(messages: pa.RecordBatch) -> None:
    """Raises `DataError` unless they have the columns of `MESSAGES`, without nulls."""
    if messages.schema.names != MESSAGES.names or messages.schema.types != MESSAGES.types:
        raise DataError(
            f"log messages must have the columns {_columns_of(MESSAGES)}, but have "
            f"{_columns_of(messages.schema)}. See recd_plugins.api.data.MESSAGES."
        )
    for name, column in zip(MESSAGES.names, messages.columns, strict=True):
        if column.null_count:
            raise DataError(
                f"log messages: column {name!r} holds {so_many(column.null_count, 'null')}."
            )


def _columns_of(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def session_shards(session_ids: I64, shards: int) -> I64:
    """All messages of a session go to the same shard; [N] to [N].

    Shard i holds the sessions whose hash lies in the i-th of equal ranges, so a table that is
    sorted by hash takes one shard after the other.
    """
    return bucket_of(mix(session_ids), shards)


def message_shards(messages: pa.Array, shards: int) -> I64:
    """The shard by the hash of each message's CRC-32: the load is even, but sessions are scattered;
    [N]."""
    if not len(messages):
        return np.empty(0, np.int64)
    offsets = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset :].tolist()
    data = memoryview(messages.buffers()[2] or b"")
    checksums = [crc32(data[offsets[i] : offsets[i + 1]]) for i in range(len(messages))]
    return bucket_of(mix(np.array(checksums, np.uint64)), shards)


def routed(
    messages: pa.RecordBatch, route: LogRoute, shards: int
) -> list[tuple[int, pa.RecordBatch]]:
    """The messages of each shard that gets any, in the order in which they came."""
    if not messages.num_rows:
        return []
    if route == "session":
        target = session_shards(messages["session_id"].to_numpy(), shards)
    else:
        target = message_shards(messages["message"], shards)
    order = np.argsort(target, kind="stable")
    sorted_messages, target = messages.take(pa.array(order)), target[order]
    starts = np.flatnonzero(np.diff(target, prepend=-1))
    ends = np.append(starts[1:], target.size)
    return [
        (int(target[start]), sorted_messages.slice(start, end - start))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
