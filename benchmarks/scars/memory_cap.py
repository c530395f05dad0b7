"""Caps on the memory of a process, including pages of files: Linux's control groups.

RLIMIT_DATA is not enough: it leaves out pages of files, so that a whole mapped table may be in
memory. RLIMIT_AS counts what is mapped, in memory or not, and RLIMIT_RSS is not enforced.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryCap", "NoMemoryCap", "memory_cap"]

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class NoMemoryCap(Exception):
    """Control groups of memory cannot be made here; the message says why."""


@dataclass(frozen=True)
class MemoryCap:
    """A control group of its own."""

    folder: Path

    def enter(self) -> None:
        """Count the memory that this process uses from now on; what it has already does not
        count."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def most(self) -> int:
        """The most bytes that were in use at once."""
        names = ("memory.max_usage_in_bytes", "memory.peak")
        return int(next(p for n in names if (p := self.folder / n).exists()).read_text())


@contextlib.contextmanager
def memory_cap(num_bytes: int) -> Iterator[MemoryCap]:
    """Allow at most `num_bytes` to the processes that enter, without swap. A process that needs
    more is killed."""
    version_1 = V1.is_dir()
    folder = (V1 if version_1 else V2) / f"recd-{os.getpid()}"
    limits = (
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        if version_1
        else ("memory.max", "memory.swap.max")
    )
    try:
        folder.mkdir()
    except OSError as error:
        raise NoMemoryCap(f"{folder}: {error.strerror}") from error
    try:
        try:
            (folder / limits[0]).write_text(str(num_bytes))
        except OSError as error:
            raise NoMemoryCap(f"{folder / limits[0]}: {error.strerror}") from error
        with contextlib.suppress(OSError):  # a kernel without swap has no such file
            (folder / limits[1]).write_text(str(num_bytes) if version_1 else "0")
        yield MemoryCap(folder)
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove the folder once the last process in it is gone."""
    for _ in range(50):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.1)
