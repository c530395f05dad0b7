"""A temporary folder that does not stay for ever: what a killed process left of its kind, the next
one removes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

__all__ = ["temporary_folder"]

SUFFIX = ".recd"
"""By which a folder is known to be one of these: a user's own may begin with the same words."""


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder in the temporary one, locked until its end by this process and those forked from
    it. This user's folders of the same kind on which nobody holds a lock are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*{SUFFIX}"):
        with suppress(OSError), closing(_Locked(left, wait=False)):
            shutil.rmtree(left)
    while True:
        folder = tempfile.TemporaryDirectory(SUFFIX, prefix)
        with suppress(FileNotFoundError):
            lock = _Locked(Path(folder.name), wait=True)
            if Path(folder.name).exists():
                break
            lock.close()
        folder.cleanup()  # another process removed it before the lock was there
    with folder as name, closing(lock):
        yield Path(name)


class _Locked:
    """A folder that is locked until `close`; `OSError` if it is no folder of this user, or another
    process has the lock."""

    def __init__(self, folder: Path, *, wait: bool) -> None:
        self._opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(self._opened).st_uid != os.getuid():
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(folder))
            fcntl.flock(self._opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:  # held, or the file system has no locks: then nothing is ever removed
            if not wait:
                self.close()
                raise

    def close(self) -> None:
        os.close(self._opened)
