"""Which log shard a message goes to: by its session (O1), or by itself (the baseline)."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pyarrow as pa

from recd_dedup.hashing import I64, bucket_of, mix
from recd_plugins.api.data import LogRoute

__all__ = ["message_shards", "routed", "session_shards"]


def session_shards(session_ids: I64, shards: int) -> I64:
    """All messages of a session meet in one shard; [N] to [N].

    Shard i holds the sessions whose hash lies in the i-th of equal ranges, so a table that
    is sorted by hash takes the shards one after the other.
    """
    return bucket_of(mix(session_ids), shards)


def message_shards(messages: pa.Array, shards: int) -> I64:
    """By the hash of each message's CRC-32: an even load, sessions scattered; [N] to [N]."""
    if not len(messages):
        return np.empty(0, np.int64)
    offsets = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset :].tolist()
    data = memoryview(messages.buffers()[2] or b"")
    checksums = [crc32(data[offsets[i] : offsets[i + 1]]) for i in range(len(messages))]
    return bucket_of(mix(np.array(checksums, np.uint64)), shards)


def routed(
    messages: pa.RecordBatch, route: LogRoute, shards: int
) -> list[tuple[int, pa.RecordBatch]]:
    """The messages of each shard that gets any, in the order that they came."""
    if not messages.num_rows:
        return []
    if route == "session":
        target = session_shards(messages["session_id"].to_numpy(), shards)
    else:
        target = message_shards(messages["message"], shards)
    order = np.argsort(target, kind="stable")
    together, target = messages.take(pa.array(order)), target[order]
    starts = np.flatnonzero(np.diff(target, prepend=-1))
    ends = np.append(starts[1:], target.size)
    return [
        (int(target[start]), together.slice(start, end - start))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
