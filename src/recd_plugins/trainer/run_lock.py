"""A run belongs to one job at a time: a lock beside its folder, freed as the process ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import IO

from recd_plugins.errors import RegistryError

__all__ = ["RunLock", "check_free"]


class RunLock:
    """What rank 0 of a job holds until it is left, or the process ends, be it killed.

    The lock is of the process, not of the file: what the process forks does not keep it, and
    the file that stays behind locks nothing.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Hold the run from now on; `RegistryError` names the job that has it."""
        path = _lock_of(self._run)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise _taken(self._run, file) from None
        self._file = file
        file.truncate(0)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
        file.write(json.dumps(holder))
        file.flush()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def check_free(run: Path) -> None:
    """`RegistryError` where another job trains in this folder now."""
    if _lock_of(run).exists():
        with RunLock(run) as lock:
            lock.take()


def _lock_of(run: Path) -> Path:
    run = Path(os.path.realpath(run))
    return run.with_name(f".{run.name}.lock")


def _taken(run: Path, file: IO[str]) -> RegistryError:
    who = "another process"
    try:
        file.seek(0)
        holder = json.load(file)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["started"]))
        who = f"process {holder['pid']} of {holder['host']} since {when}"
    except (ValueError, KeyError, TypeError):
        pass  # it has the lock and has not written yet who it is
    return RegistryError(
        f"train.run: {run} is being trained in by {who}. Wait for its end, or name another folder "
        "with train.run=..."
    )
