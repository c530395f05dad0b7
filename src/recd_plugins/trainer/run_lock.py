"""The lock that gives the folder of a run to one job at a time. It lies beside the folder, and is
free when the process that holds it ends."""

from __future__ import annotations

import warnings
from pathlib import Path

from recd_plugins.errors import RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.storage.lock_file import LockFile, LockHeld, lock_beside

__all__ = ["RunLock", "check_free"]


class RunLock:
    """The lock that rank 0 of a job holds until it is left, or the process ends, be it killed."""

    def __init__(self, run: Path, option: str = "train.run") -> None:
        self._run, self._option = run, option
        self._lock = LockFile(lock_beside(run))

    def take(self) -> None:
        """Lock the run from now on; if another job holds it, a `RegistryError` names that job."""
        try:
            locked = self._lock.take()
        except LockHeld as held:
            raise RegistryError(
                f"{self._option}: {self._run} is being trained in by {held}. Wait until that ends, "
                "or name another folder."
            ) from None
        if not locked:
            warnings.warn(
                f"{self._option}: the file system of {self._run} has no locks, so a second job "
                "that trains there cannot be refused. Give each job a folder of its own.",
                NoticeWarning,
                stacklevel=2,
            )

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.give_back()


def check_free(run: Path, option: str = "train.run") -> None:
    """`RegistryError` if another job is training in the folder that `option` names."""
    if lock_beside(run).exists():
        with RunLock(run, option) as lock:
            lock.take()
