"""Raw messages, made and read whole; what the tests of shards and of Kafka share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from recd_plugins.data.messages import MESSAGES

Message = tuple[int, int, bytes]
"""Session id, timestamp, bytes."""


def messages_of(rows: Iterable[Message]) -> pa.RecordBatch:
    named = [dict(zip(MESSAGES.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(named, schema=MESSAGES)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Message]:
    rows: list[Message] = []
    for batch in batches:
        assert batch.schema.equals(MESSAGES)
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


def numbered(count: int, first: int = 0, sessions: int = 7, size: int = 40) -> list[Message]:
    """Messages that differ, in the order of time."""
    return [
        (n % sessions - 3, 1000 + n, f"message {n} ".encode().ljust(size, b"."))
        for n in range(first, first + count)
    ]


def everything(store: Any) -> list[Message]:
    return [row for shard in range(store.shards) for row in rows_of(store.read(shard))]
