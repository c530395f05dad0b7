"""A record batch as bytes: an Arrow IPC stream; nothing is pickled."""

from __future__ import annotations

import pyarrow as pa

from recd_plugins.errors import DataError

__all__ = ["from_bytes", "to_bytes"]


def to_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """An Arrow IPC stream of one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def from_bytes(data: bytes | pa.Buffer) -> pa.RecordBatch:
    """What `to_bytes` was given, on the same memory."""
    try:
        with pa.ipc.open_stream(data) as stream:
            return stream.read_next_batch()
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise DataError(f"these bytes are no Arrow stream ({error}). Send them again.") from error
