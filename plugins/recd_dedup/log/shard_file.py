"""A log shard's file: blocks of messages (`log_block`) are packed in frames, and frames appended.

A file is a head, then frames, written by one writer and never rewritten:

    head   8s "RECDLOG1"   u32 shard   u32 crc32 of the 12 bytes before
    frame  4s "RBLK"   u32 messages   u32 raw bytes   u32 stored bytes   i64 first timestamp
           u32 crc32 of the payload   u32 crc32 of the 28 bytes before   payload

The payload is a block of messages. Everything is little-endian. A frame without messages is the
seal of a writer that closed. Its payload is the trailer, against which the frames before it are
checked:

    u64 blocks   u64 messages   32s SHA-256 of all their headers, end to end

Bytes that cannot be read and have no whole frame after them are a torn tail: a write that a crash
cut off, or that is under way. Bytes that cannot be read before a whole frame are damage.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Literal, NamedTuple, TypeVar
from zlib import crc32

from recd_plugins.api import DataError, so_many
from recd_plugins.api.data import Location

__all__ = [
    "FILE_BYTES",
    "SEAL_BYTES",
    "Damaged",
    "Frame",
    "Fsync",
    "Sealed",
    "ShardFile",
    "appended",
    "cut_short",
    "file_head",
    "file_name",
    "files_of_log",
    "frame_bytes",
    "frames",
    "frames_between",
    "held_in",
    "name_of",
    "read_payload",
    "report_damage",
    "shard_files",
    "shard_folder",
    "shard_of",
    "sync_folder",
]

L = TypeVar("L", Path, Location)

Damaged = Literal["raise", "skip"]
"""What a reader does about damage: it raises an error that names file and offset, or reads only
what is whole."""

LOG = logging.getLogger(__name__)
MAGIC = b"RBLK"
FILE = struct.Struct("<8sI")
FRAME = struct.Struct("<4sIIIqI")
CRC = struct.Struct("<I")
TRAILER = struct.Struct("<QQ32s")
FILE_BYTES = FILE.size + CRC.size
FRAME_BYTES = FRAME.size + CRC.size
SEAL_BYTES = FRAME_BYTES + TRAILER.size
SHARD = "shard-"
"""What the name of a log shard's folder begins with, before its number."""


class Sealed(NamedTuple):
    """The state of a file when its writer sealed it."""

    bytes: int
    blocks: int
    messages: int
    digest: str
    """The hash of the headers of its blocks, which have the checksums of the messages."""


class Frame(NamedTuple):
    """The place of a block, as its header says."""

    file: Location
    offset: int
    messages: int
    raw: int
    """Bytes of the payload, unpacked."""
    stored: int
    """Bytes of the payload, as stored in the file."""
    first: int
    """The earliest timestamp of its messages."""
    checksum: int

    @property
    def end(self) -> int:
        return self.offset + FRAME_BYTES + self.stored

    def __str__(self) -> str:
        return f"{self.file}, byte {self.offset:,}"


def shard_folder(shard: int) -> str:
    """The folder of a log shard, within the log's."""
    return f"{SHARD}{shard:05}"


def file_name(shard: int, writer: str) -> str:
    """The name of a writer's file of a log shard, within the log's folder."""
    return f"{shard_folder(shard)}/{writer}.log"


def name_of(file: Location) -> str:
    """The `file_name` of a file."""
    return f"{file.parent.name}/{file.name}"


def shard_of(file: Location) -> int:
    """The log shard that a file belongs to, by its name."""
    return int(file.parent.name[len(SHARD) :])


def shard_files(folder: L, shard: int) -> list[L]:
    """The files of a log shard, one per writer."""
    return sorted(held_in(folder / shard_folder(shard), "*.log"))


def files_of_log(folder: L, writer: str = "*") -> Iterator[L]:
    """The files of all log shards: of one writer, or of all."""
    if isinstance(folder, Path):
        for shard in held_in(folder, f"{SHARD}*"):
            yield from held_in(shard, f"{writer}.log")
    else:
        yield from folder.glob(f"{SHARD}*/{writer}.log")


def held_in(folder: L, pattern: str) -> Iterator[L]:
    """What a folder of a log holds; raises `PermissionError` if this process may not see it."""
    if isinstance(folder, Path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder):
            pass  # `glob` finds nothing in a folder that it may not read
    yield from folder.glob(pattern)


def file_head(shard: int) -> bytes:
    return _checked(FILE.pack(b"RECDLOG1", shard))


def frame_bytes(payload: bytes, *, messages: int, raw: int, first: int) -> bytes:
    """A frame; without messages, the seal, whose payload is the trailer."""
    header = FRAME.pack(MAGIC, messages, raw, len(payload), first, crc32(payload))
    return _checked(header) + payload


def frames(file: Location, shard: int, damaged: Damaged = "raise") -> Iterator[Frame]:
    """The frames of a file from their headers only, including the seal, without a torn tail."""
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
        blocks, messages, headers = 0, 0, hashlib.sha256()
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
            if frame.messages:
                blocks, messages = blocks + 1, messages + frame.messages
                headers.update(header)
            else:
                trailer = TRAILER.pack(blocks, messages, headers.digest())
                _check_trailer(frame, opened, trailer, damaged)
            yield frame
            offset = frame.end
            if not frame.messages and offset < _size(opened):
                raise DataError(
                    f"{file}, byte {offset:,}: its writer closed it there, but something was added "
                    "behind. Cut it off there, or take the file out of the log."
                )


def frames_between(
    file: Location, shard: int, begin: int, end: int | None, damaged: Damaged
) -> Iterator[Frame]:
    """The blocks between two places where frames begin or end; without `end`, up to the seal or a
    torn tail. What was once there and cannot be read is damage."""
    offset = max(begin, FILE_BYTES)
    with file.open("rb") as opened:
        head = opened.read(FILE_BYTES)
        if len(head) < FILE_BYTES and end is not None:
            cut_short(file, len(head), end, damaged)
            return
        if head != file_head(shard):
            raise DataError(
                f"{file}: is no log file of shard {shard}: its first {FILE_BYTES} bytes say "
                "otherwise. Take it from a copy, or out of the log if it was put into the wrong "
                "folder."
            )
        while end is None or offset < end:
            frame = _parsed(file, offset, _at(opened, offset, FRAME_BYTES))
            if frame is None or frame.end > _size(opened):
                after = None if frame else _after_damage(file, offset, damaged)
                if after is None:
                    if end is not None:
                        cut_short(file, offset, end, damaged)
                    return
                offset = after
                continue
            if frame.messages:
                yield frame
            offset = frame.end


def cut_short(file: Location, offset: int, end: int, damaged: Damaged) -> None:
    """Report that a file which was whole up to `end` is now whole only up to `offset`."""
    report_damage(
        f"{file}: was whole up to byte {end:,} before, and is now up to byte {offset:,}", damaged
    )


def report_damage(what: str, damaged: Damaged, skipped: str = "") -> None:
    """Raises `DataError` for what is lost of a file; or writes a line to the program's log, with
    the text `skipped` if given."""
    if damaged == "raise":
        raise DataError(
            f"{what}. Restore the file from a copy, or read with `damaged: skip`, which leaves out "
            "what is lost."
        )
    LOG.warning("%s", skipped or what)


def read_payload(frame: Frame, damaged: Damaged = "raise") -> bytes | None:
    """A frame's payload, checked; None if it is torn, or damaged and skipped."""
    with frame.file.open("rb") as opened:
        payload = _at(opened, frame.offset + FRAME_BYTES, frame.stored)
    if len(payload) == frame.stored and crc32(payload) == frame.checksum:
        return payload
    _after_damage(frame.file, frame.offset, damaged)
    return None


def _check_trailer(seal: Frame, opened: IO[bytes], found: bytes, damaged: Damaged) -> None:
    """Check the blocks of a file against what its writer sealed; older writers sealed without a
    trailer."""
    trailer = _at(opened, seal.offset + FRAME_BYTES, seal.stored)
    if trailer in (b"", found):
        return
    blocks, messages, _ = TRAILER.unpack(found)
    if crc32(trailer) != seal.checksum or len(trailer) != TRAILER.size:
        what = "its trailer is damaged"
    else:
        sealed_blocks, sealed, _ = TRAILER.unpack(trailer)
        what = (
            f"{so_many(blocks, 'block')} with {so_many(messages, 'message')} before it, but "
            f"{sealed_blocks:,} with {sealed:,} were sealed"
        )
    report_damage(f"{seal}: {what}", damaged)


def _after_damage(file: Location, offset: int, damaged: Damaged) -> int | None:
    """The place where the next whole frame begins; None if what cannot be read is a torn tail."""
    with _content(file) as data:
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
    report_damage(
        f"{file}, byte {offset:,}: the block there is damaged; whole ones follow from byte "
        f"{found:,}",
        damaged,
        skipped=f"{file}: bytes {offset} to {found} are damaged and left out",
    )
    return found


def _parsed(file: Location, offset: int, header: bytes) -> Frame | None:
    if len(header) < FRAME_BYTES or header != _checked(header[: FRAME.size]):
        return None
    magic, messages, raw, stored, first, checksum = FRAME.unpack(header[: FRAME.size])
    return Frame(file, offset, messages, raw, stored, first, checksum) if magic == MAGIC else None


def _checked(data: bytes) -> bytes:
    return data + CRC.pack(crc32(data))


def _at(opened: IO[bytes], offset: int, size: int) -> bytes:
    opened.seek(offset)
    return opened.read(size)


def _size(opened: IO[bytes]) -> int:
    return opened.seek(0, os.SEEK_END)


@contextlib.contextmanager
def _content(file: Location) -> Iterator[mmap | bytes]:
    """All bytes of a file: mapped, or fetched from a store."""
    if isinstance(file, Path):
        with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as data:
            yield data
    else:
        yield file.read_bytes()


Fsync = Literal["block", "flush", "never"]
"""When data is forced to the disk: at each block, at `flush` and `close`, or when the system
decides."""


class ShardFile:
    """One writer's file of one log shard: each frame, and in the end a seal, is appended by one
    write.

    The first frame creates it. No other writer ever writes to it, so no lock is needed.
    """

    def __init__(self, path: Path, shard: int, fsync: Fsync) -> None:
        self.path = path
        self._fsync = fsync
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._end = 0
        self._blocks = self._messages = 0
        self._headers = hashlib.sha256()
        try:
            self._write(file_head(shard))
        except OSError:
            os.close(self._file)
            path.unlink()
            raise
        if fsync != "never":
            sync_folder(path.parent)
            sync_folder(path.parent.parent)

    @property
    def end(self) -> int:
        """Its bytes so far."""
        return self._end

    def append(self, frame: bytes) -> None:
        """Write a frame; if that fails, the file stays as it was."""
        self._write(frame)
        self._blocks += 1
        self._messages += FRAME.unpack_from(frame)[1]
        self._headers.update(frame[:FRAME_BYTES])
        if self._fsync == "block":
            os.fsync(self._file)

    def flush(self) -> None:
        if self._fsync == "flush":
            os.fsync(self._file)

    def close(self) -> Sealed:
        """Seal the file: from now on, what cannot be read at its end is damage, not a torn tail."""
        trailer = TRAILER.pack(self._blocks, self._messages, self._headers.digest())
        try:
            self._write(frame_bytes(trailer, messages=0, raw=len(trailer), first=0))
            if self._fsync != "never":
                os.fsync(self._file)
        finally:
            os.close(self._file)
        return Sealed(self._end, self._blocks, self._messages, self._headers.hexdigest())

    def _write(self, data: bytes) -> None:
        self._end = appended(self._file, data, self._end)


def appended(file: int, data: bytes, end: int) -> int:
    """Appends data to an open file of `end` bytes and returns its new end; if that fails, as on a
    full disk, the file stays as it was."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(file, end)
            os.lseek(file, end, os.SEEK_SET)
        raise
    return end + len(data)


def sync_folder(folder: Path) -> None:
    """Make a new file's name survive a crash, too."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
