"""A lock that one process at a time holds: a file says which one, and since when."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["LockFile", "LockHeld", "lock_beside", "written_alone"]

HAS_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class LockHeld(Exception):
    """Another process has the lock: the message says which one, and since when."""


class LockFile:
    """A lock that is held from `take` until it is given back or the process ends, even if it is
    killed.

    It belongs to the process, not to the file: forked processes do not keep it, and a file that is
    left behind locks nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def take(self) -> bool:
        """Hold the lock from now on; raises `LockHeld`, which names the holder, if another process
        has it. Returns whether it keeps others away: a file system without locks lets anybody
        write."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file, locked = self._path.open("a+"), True
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with file:
                    raise LockHeld(_holder(file)) from None
            except OSError as error:
                locked = False
                if error.errno not in HAS_NO_LOCKS:
                    file.close()
                    raise
            if self._is_there(file):
                break
            file.close()  # the previous holder removed it meanwhile
        self._file = file
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
        with contextlib.suppress(OSError):  # on a full disk the lock is held all the same
            file.truncate(0)
            os.write(file.fileno(), json.dumps(holder).encode())
        return locked

    def give_back(self, *, remove: bool = False) -> None:
        """Release the lock; with `remove`, no file is left behind."""
        if self._file is None:
            return
        if remove:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._file.close()
        self._file = None

    def _is_there(self, file: IO[str]) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False


def _holder(file: IO[str]) -> str:
    try:
        file.seek(0)
        holder = json.load(file)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["started"]))
        return f"process {holder['pid']} of {holder['host']} since {when}"
    except (ValueError, KeyError, TypeError):
        return "another process"  # it holds the lock, but has not yet written who it is


def lock_beside(folder: Path) -> Path:
    """The lock file of a folder: beside the folder, which need not exist."""
    real = Path(os.path.realpath(folder))
    return real.with_name(f".{real.name}.lock")


@contextlib.contextmanager
def written_alone(folder: Path, name: Location) -> Iterator[None]:
    """Inside, no other process that calls this too writes this folder.

    Raises `DataError`, with the name that the user gave, if another process is already writing it.
    """
    lock = LockFile(lock_beside(folder))
    try:
        lock.take()
    except LockHeld as held:
        raise DataError(
            f"{name}: is being written by {held}. Wait until that ends, or name another folder."
        ) from None
    try:
        yield
    finally:
        lock.give_back(remove=True)
