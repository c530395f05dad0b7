"""A block of a log shard's messages, which is the payload of one frame of its file.

A block of N messages is zstd-packed as one, little-endian:

    i64 session id [N]   i64 timestamp [N]   u32 length [N]   the messages, end to end
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import zstandard
from numpy.typing import NDArray

from recd_dedup.log.shard_file import Damaged, Frame, frame_bytes, read_payload
from recd_plugins.api import DataError
from recd_plugins.api.data import MESSAGES

__all__ = ["LogBlock", "messages_within", "read_block"]

MOST = 1 << 30
"""Bytes of the longest message: two such messages fit the 32-bit offsets of Arrow's `binary`."""
INT32 = (1 << 31) - 1
"""The largest such offset, and so the most bytes of an unpacked block."""
KEY_BYTES = 8 + 8 + 4


class LogBlock:
    """Messages of one log shard, gathered until there are enough to write.

    They are copied into the file's layout, so that appended batches are not kept in memory.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self._first = 0
        self._keys = (bytearray(), bytearray(), bytearray())
        self._messages = bytearray()

    @property
    def raw(self) -> int:
        """Bytes before packing."""
        return self.count * KEY_BYTES + len(self._messages)

    def add(self, messages: pa.RecordBatch) -> None:
        if not messages.num_rows:
            return
        offsets, data = _buffers(messages["message"])
        timestamps = messages["timestamp"].to_numpy()
        first = int(timestamps.min())
        self._first = min(self._first, first) if self.count else first
        self.count += messages.num_rows
        sessions, times, lengths = self._keys
        sessions += messages["session_id"].to_numpy().astype("<i8", copy=False).tobytes()
        times += timestamps.astype("<i8", copy=False).tobytes()
        lengths += np.diff(offsets).astype("<u4").tobytes()
        self._messages += data[offsets[0] : offsets[-1]]

    def packed(self, compressor: zstandard.ZstdCompressor) -> bytes:
        """The frame of what was added."""
        payload = compressor.compress(b"".join((*self._keys, self._messages)))
        return frame_bytes(payload, messages=self.count, raw=self.raw, first=self._first)


def messages_within(messages: pa.RecordBatch, room: int) -> int:
    """The number of messages, from the first on, that fit into `room` bytes of a block."""
    offsets, _ = _buffers(messages["message"])
    longest = int(np.diff(offsets).max(initial=0))
    if longest > MOST:
        raise DataError(f"a log message has {longest:,} bytes; the most is {MOST:,}. Split it.")
    ends = (offsets[1:] - offsets[0]) + KEY_BYTES * np.arange(1, messages.num_rows + 1)
    return int(np.searchsorted(ends, room, side="right"))


def read_block(frame: Frame, damaged: Damaged) -> pa.RecordBatch | None:
    """The messages of a frame; None if it is torn, or damaged and skipped."""
    payload = read_payload(frame, damaged)
    if payload is None:
        return None
    n, keys = frame.messages, frame.messages * KEY_BYTES
    try:
        # zstd allocates the memory that a payload declares, whatever limit it is given.
        declared = zstandard.frame_content_size(payload)
        if frame.raw > INT32 or declared not in (frame.raw, -1):  # -1 if it declares none
            raise DataError(
                f"{frame}: its checksum holds, but it unpacks to {max(declared, frame.raw):,} "
                f"bytes, but its header has {frame.raw:,} and a block at most {INT32:,}. No writer "
                "of ours made it: take the file out of the log."
            )
        raw = zstandard.ZstdDecompressor().decompress(payload, max_output_size=frame.raw)
    except zstandard.ZstdError as error:
        raise DataError(f"{frame}: its checksum holds, but zstd cannot read it: {error}.") from None
    lengths = np.frombuffer(raw[16 * n : keys], "<u4") if len(raw) >= keys else None
    if lengths is None or len(raw) != frame.raw or keys + int(lengths.sum()) != len(raw):
        raise DataError(f"{frame}: its checksum holds, but its lengths do not add up.")
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    columns = [
        pa.array(np.frombuffer(raw, "<i8", n)),
        pa.array(np.frombuffer(raw, "<i8", n, offset=8 * n)),
        pa.Array.from_buffers(
            pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(raw).slice(keys)]
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _buffers(messages: pa.Array) -> tuple[NDArray[np.int32], memoryview]:
    """Offsets [N + 1] and the bytes that they point into."""
    _, offsets, data = messages.buffers()
    begin = messages.offset
    if offsets is None or not offsets.size:
        return np.zeros(1, np.int32), memoryview(b"")
    return (
        np.frombuffer(offsets, np.int32)[begin : begin + len(messages) + 1],
        memoryview(data or b""),
    )
