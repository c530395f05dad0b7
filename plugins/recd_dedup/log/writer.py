"""One writer's file of one log shard: frames appended, each by one write, and a seal."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal

from recd_dedup.log.frame import file_head, frame_bytes

__all__ = ["Fsync", "ShardFile"]

Fsync = Literal["block", "flush", "never"]
"""When the disk must have it: at each block, at `flush` and `close`, or when the system likes."""


class ShardFile:
    """Created by its first frame. No other writer ever writes to it, so none needs a lock."""

    def __init__(self, path: Path, shard: int, fsync: Fsync) -> None:
        self.path = path
        self._fsync = fsync
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._end = 0
        try:
            self._write(file_head(shard))
        except OSError:
            os.close(self._file)
            path.unlink()
            raise
        if fsync != "never":
            sync_folder(path.parent)
            sync_folder(path.parent.parent)

    def append(self, frame: bytes) -> None:
        """Write a frame; where that fails, the file is as it was before."""
        self._write(frame)
        if self._fsync == "block":
            os.fsync(self._file)

    def flush(self) -> None:
        if self._fsync == "flush":
            os.fsync(self._file)

    def close(self) -> None:
        """Seal the file: from now on, what cannot be read at its end is damage, not a torn tail."""
        try:
            self.append(frame_bytes(b"", messages=0, raw=0, first=0))
            self.flush()
        finally:
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:  # a full disk
            with contextlib.suppress(OSError):
                os.truncate(self._file, self._end)
                os.lseek(self._file, self._end, os.SEEK_SET)
            raise
        self._end += len(data)


def sync_folder(folder: Path) -> None:
    """Let a new file's name outlive a crash, too."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
