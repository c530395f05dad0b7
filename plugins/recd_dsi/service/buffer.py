"""Batches that are made and kept: in memory up to a bound in bytes, and then in a folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import uuid
import warnings
import zlib
from collections import OrderedDict
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import pyarrow as pa

from recd_dsi.service.calls import LARGEST_ANSWER
from recd_plugins.api import CapabilityError, NoticeWarning

__all__ = ["Buffer", "DiskCache", "Key", "size_of"]

FORM = "head and narrow body, checked with its name"
"""The form of records in files; records in another form are those of other versions."""
CHECKSUM = 4
"""Bytes of a CRC-32."""
LARGEST = LARGEST_ANSWER + (1 << 20)
"""The most bytes of a file: those of the largest batch, and the stream's overhead."""
OURS = re.compile(r"[0-9a-f]{40}(\.[0-9a-f]{32}\.part)?")
"""The names of the cache's files."""


class Key(NamedTuple):
    """The identity of a batch: the same bytes wherever it is made."""

    job: str
    consumer: int
    epoch: int
    batch: int

    @property
    def name(self) -> str:
        """A file name."""
        text = "-".join(map(str, (FORM, *self)))
        return hashlib.sha256(text.encode()).hexdigest()[:40]


def size_of(record: pa.RecordBatch) -> int:
    """The bytes of a batch. To count them as its `nbytes` gives up Python's lock, for which a
    worker's threads then wait."""
    found: int = record.get_total_buffer_size()
    return found


class Buffer:
    """The batches that a worker has made: those not yet requested are kept, the others make room
    first."""

    def __init__(self, most_bytes: int, disk: DiskCache | None) -> None:
        self._most = most_bytes
        self._disk = disk
        self._lock = Lock()
        self._wanted: OrderedDict[Key, pa.RecordBatch] = OrderedDict()
        """Batches that were made ahead and not requested yet."""
        self._given: OrderedDict[Key, pa.RecordBatch] = OrderedDict()
        """Batches that were already requested, the last used at the end."""
        self._leaving: dict[Key, pa.RecordBatch] = {}
        """Batches on their way to the folder, kept here until they are there."""
        self.bytes = 0
        self.wanted_bytes = 0
        self._largest = 0
        """Bytes of the largest batch so far."""
        self.hits = 0

    def get(self, key: Key) -> pa.RecordBatch | None:
        """The batch, if it is here or in the folder."""
        with self._lock:
            record = self._wanted.pop(key, None)
            if record is not None:
                self.wanted_bytes -= size_of(record)
            else:
                record = self._given.get(key)
            if record is not None:
                self._given[key] = record
                self._given.move_to_end(key)
            else:
                record = self._leaving.get(key)
            if record is not None:
                self.hits += 1
                return record
        record = None if self._disk is None else self._disk.get(key)
        if record is not None:
            self.hits += 1
            self.put(key, record, wanted=False)
        return record

    def __contains__(self, key: Key) -> bool:
        with self._lock:
            if key in self._wanted or key in self._given or key in self._leaving:
                return True
        return self._disk is not None and key in self._disk

    def has_room(self) -> bool:
        """Whether one more batch may be made ahead without dropping one that waits."""
        return not self.wanted_bytes or self.wanted_bytes + self._largest <= self._most

    def put(self, key: Key, record: pa.RecordBatch, *, wanted: bool) -> None:
        """Keep a batch; those requested longest ago make room, and go to the folder if there is
        one."""
        gone: list[tuple[Key, pa.RecordBatch]] = []
        size = size_of(record)
        with self._lock:
            if key in self._wanted or key in self._given:
                return
            (self._wanted if wanted else self._given)[key] = record
            self.bytes += size
            self.wanted_bytes += size if wanted else 0
            self._largest = max(self._largest, size)
            while self.bytes > self._most and (other := self._least(key)) is not None:
                kept = self._given if other in self._given else self._wanted
                out = kept.pop(other)
                self.bytes -= size_of(out)
                self.wanted_bytes -= size_of(out) if kept is self._wanted else 0
                if self._disk is not None:
                    self._leaving[other] = out
                    gone.append((other, out))
        if self._disk is not None:
            for other, out in gone:
                self._disk.put(other, out)
                with self._lock:
                    self._leaving.pop(other, None)

    def unwant(self, stream: tuple[str, int, int]) -> None:
        """Batches made ahead for this consumer's epoch may not be requested any more: they make
        room first."""
        with self._lock:
            for key in [key for key in self._wanted if key[:3] == stream]:
                record = self._given[key] = self._wanted.pop(key)
                self._given.move_to_end(key, last=False)
                self.wanted_bytes -= size_of(record)

    def _least(self, latest: Key) -> Key | None:
        """The batch that makes room first, except the latest: the one requested longest ago, else
        the one needed last, from other epochs before its own; None if there is none."""
        others = (key for key in reversed(self._wanted) if key[:3] != latest[:3])
        order = chain(self._given, others, reversed(self._wanted))
        return next((one for one in order if one != latest), None)


class DiskCache:
    """A folder of batches that any number of workers of a machine share, bounded in bytes.

    A file is an Arrow stream of one batch, and the CRC-32 of its name and of the stream behind it.
    Anything else in the folder is ignored.
    """

    def __init__(self, folder: Path, most_bytes: int, written: str = "") -> None:
        """`written` says when the files of the tables were: a job names these by their footers,
        which stay the same where, for example, only the labels of two rows are swapped."""
        self._folder = folder
        self._most = most_bytes
        self._tables_written = written
        self._written = 0
        self._full = False
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise CapabilityError(
                f"cache: {folder} cannot be made ({error.strerror}). Name a folder in which "
                "workers may write."
            ) from None

    def __contains__(self, key: Key) -> bool:
        try:
            return stat.S_ISREG(self._path(key).lstat().st_mode)
        except OSError:
            return False

    def get(self, key: Key) -> pa.RecordBatch | None:
        """The batch; None if it is not there. A damaged file is removed, so that the batch is made
        again."""
        path = self._path(key)
        try:
            found = pa.py_buffer(_contents(path))
        except OSError:
            return None
        stream, checksum = found[:-CHECKSUM], found[-CHECKSUM:]
        if found.size <= CHECKSUM or _checksum(path.name, stream) != checksum:
            with contextlib.suppress(OSError):  # of another user, or on a read-only disk
                path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)
        with pa.ipc.open_stream(stream) as reader:
            return reader.read_next_batch()

    def put(self, key: Key, record: pa.RecordBatch) -> None:
        """Write a batch, whole or not at all; once the disk is full, nothing more is written, and a
        notice says so."""
        path = self._path(key)
        if self._full or os.path.lexists(path):
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, record.schema) as writer:
            writer.write_batch(record)
        stream = sink.getvalue()
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
        try:
            with part.open("wb") as file:
                file.write(stream)
                file.write(_checksum(path.name, stream))
            part.rename(path)
        except OSError as error:
            self._full = True
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            cure = "Free space on its disk" if is_full else "Name a folder in which it may write"
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            warnings.warn(
                f"cache: {self._folder} takes no more batches ({error.strerror}): those that do "
                f"not fit into memory will be made again. {cure} and start the worker again.",
                NoticeWarning,
                stacklevel=2,
            )
            return
        self._written += size_of(record)
        if self._written > self._most // 8:
            self._written = 0
            self._shrink()

    def _path(self, key: Key) -> Path:
        return self._folder / key._replace(job=key.job + self._tables_written).name

    def _shrink(self) -> None:
        """Remove those of our files that were used longest ago, beyond the bound; everything else
        stays."""
        found = []
        for entry in os.scandir(self._folder):
            if not OURS.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat()
                found.append((status.st_mtime, status.st_size, entry.path))
        over = sum(size for _, size, _ in found) - self._most
        for _, size, path in sorted(found):
            if over <= 0:
                return
            with contextlib.suppress(OSError):  # of another user, who may remove it
                Path(path).unlink(missing_ok=True)
                over -= size


def _contents(path: Path) -> bytes:
    """A file's bytes; raises `OSError` for a link, a pipe, a device, or a file larger than a
    batch."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise OSError(f"{path}: is no batch")
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read(status.st_size)


def _checksum(name: str, stream: pa.Buffer) -> bytes:
    return zlib.crc32(stream, zlib.crc32(name.encode())).to_bytes(CHECKSUM, "little")
