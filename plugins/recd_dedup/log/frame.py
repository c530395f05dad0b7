"""Frames: how blocks lie in a log file, so that a torn tail is known from damage.

A file is a head, then frames, written by one writer and never rewritten:

    head   8s "RECDLOG1"   u32 shard   u32 crc32 of the 12 bytes before
    frame  4s "RBLK"   u32 messages   u32 raw bytes   u32 stored bytes   i64 first timestamp
           u32 crc32 of the payload   u32 crc32 of the 28 bytes before   payload

all little-endian. A frame of no messages is the seal of a writer that closed. What cannot be
read and has no whole frame after it is a torn tail: a write that a crash cut off, or that is
still going on. What cannot be read before a whole frame is damage.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple
from zlib import crc32

from recd_plugins.api import DataError

__all__ = ["Damaged", "Frame", "file_head", "frame_bytes", "frames", "read_payload"]

Damaged = Literal["raise", "skip"]
"""What a reader does with damage: an error that names file and offset, or only what is whole."""

LOG = logging.getLogger(__name__)
MAGIC = b"RBLK"
FILE = struct.Struct("<8sI")
FRAME = struct.Struct("<4sIIIqI")
CRC = struct.Struct("<I")
FILE_BYTES = FILE.size + CRC.size
FRAME_BYTES = FRAME.size + CRC.size


class Frame(NamedTuple):
    """Where a block lies, as its header says."""

    file: Path
    offset: int
    messages: int
    raw: int
    """Bytes of the payload, unpacked."""
    stored: int
    """Bytes of the payload, as it lies in the file."""
    first: int
    """The earliest timestamp of its messages."""
    checksum: int

    @property
    def end(self) -> int:
        return self.offset + FRAME_BYTES + self.stored

    def __str__(self) -> str:
        return f"{self.file}, byte {self.offset:,}"


def file_head(shard: int) -> bytes:
    return _checked(FILE.pack(b"RECDLOG1", shard))


def frame_bytes(payload: bytes, *, messages: int, raw: int, first: int) -> bytes:
    """A frame; without messages, the seal."""
    header = FRAME.pack(MAGIC, messages, raw, len(payload), first, crc32(payload))
    return _checked(header) + payload


def frames(file: Path, shard: int, damaged: Damaged = "raise") -> Iterator[Frame]:
    """The frames of a file from their headers alone, the seal included, a torn tail left out."""
    with file.open("rb") as opened:
        head = opened.read(FILE_BYTES)
        if len(head) < FILE_BYTES:
            return  # its writer ended before it wrote anything
        if head != file_head(shard):
            raise DataError(
                f"{file}: is no log file of shard {shard}: its first {FILE_BYTES} bytes say "
                "otherwise. It was damaged or put into the wrong folder: move it out of the log."
            )
        offset = FILE_BYTES
        while len(header := _at(opened, offset, FRAME_BYTES)) == FRAME_BYTES:
            frame = _parsed(file, offset, header)
            if frame is None:
                after = _after_damage(file, offset, damaged)
                if after is None:
                    return
                offset = after
                continue
            if frame.end > _size(opened):
                return
            yield frame
            offset = frame.end
            if not frame.messages and offset < _size(opened):
                raise DataError(
                    f"{file}, byte {offset:,}: its writer closed it before, but something was "
                    "added. Cut it there, or take it out of the log."
                )


def read_payload(frame: Frame, damaged: Damaged = "raise") -> bytes | None:
    """Its payload, checked; None for one that is torn, or damaged and skipped."""
    with frame.file.open("rb") as opened:
        payload = _at(opened, frame.offset + FRAME_BYTES, frame.stored)
    if len(payload) == frame.stored and crc32(payload) == frame.checksum:
        return payload
    _after_damage(frame.file, frame.offset, damaged)
    return None


def _after_damage(file: Path, offset: int, damaged: Damaged) -> int | None:
    """Where the next whole frame begins; None if the damage is a torn tail."""
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as data:
        found = data.find(MAGIC, offset + 1)
        while found >= 0:
            frame = _parsed(file, found, data[found : found + FRAME_BYTES])
            if frame is not None:
                payload = data[found + FRAME_BYTES : frame.end]
                if len(payload) == frame.stored and crc32(payload) == frame.checksum:
                    break
            found = data.find(MAGIC, found + 1)
    if found < 0:
        return None
    if damaged == "raise":
        raise DataError(
            f"{file}, byte {offset:,}: the block there is damaged; whole ones follow from byte "
            f"{found:,}. Take the file from a copy, or read with `damaged: skip` to go without "
            "what is lost."
        )
    LOG.warning("%s: bytes %d to %d are damaged and left out", file, offset, found)
    return found


def _parsed(file: Path, offset: int, header: bytes) -> Frame | None:
    if len(header) < FRAME_BYTES or header != _checked(header[: FRAME.size]):
        return None
    magic, messages, raw, stored, first, checksum = FRAME.unpack(header[: FRAME.size])
    return Frame(file, offset, messages, raw, stored, first, checksum) if magic == MAGIC else None


def _checked(data: bytes) -> bytes:
    return data + CRC.pack(crc32(data))


def _at(opened: BinaryIO, offset: int, size: int) -> bytes:
    opened.seek(offset)
    return opened.read(size)


def _size(opened: BinaryIO) -> int:
    return os.fstat(opened.fileno()).st_size
