"""The periods of a dataset that grows, each as tables."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from recd_plugins.data.dataset import Tables
from recd_plugins.data.growing import (
    GrowingDataset,
    NotClosed,
    Period,
    Together,
    Waiting,
    closed_period,
)
from recd_plugins.data.progress import Progress, silent
from recd_plugins.errors import DataError
from recd_plugins.notices import Notice, NoticeWarning
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.registry import Registry
from recd_plugins.registry.written_tables import (
    REMOVED,
    Found,
    are_written,
    folders_of,
    remove_tables,
    written,
)
from recd_plugins.slots import Context, DatasetRecord

__all__ = ["Periods", "grows"]

SAY_EVERY = 30.0
"""Seconds after which a rank that waits for a period reports it, again and again."""


class Periods:
    """The periods of a dataset that grows, each as tables."""

    def __init__(
        self,
        registry: Registry,
        context: Callable[[str], Context],
        dataset: GrowingDataset,
        waiting: Waiting = lambda what: None,
        found: Found = lambda notices: None,
    ) -> None:
        """`waiting` is called several times a second with the period that is waited for, and why.
        `found` gets the notices of tables, each notice once, though several periods may have
        it."""
        self.dataset = dataset
        self._registry, self._context, self._waiting = registry, context, waiting
        self._found, self._reported = found, set[str]()
        self._held: dict[int, int] = {}
        """Period to the descriptor whose lock keeps its tables."""
        weakref.finalize(self, _give_back, self._held)

    @classmethod
    def of(
        cls,
        registry: Registry,
        context: Callable[[str], Context],
        waiting: Waiting = lambda what: None,
        found: Found = lambda notices: None,
    ) -> Periods | None:
        """The periods of a registry's dataset; None if it does not grow."""
        if not registry.has_dataset or not grows(choice := registry.one("dataset")):
            return None
        return cls(registry, context, choice.build(context("dataset")), waiting, found)

    def wait(
        self, number: int, *, speaks: bool = False, together: Together = bool
    ) -> Period | None:
        """A period, once it is closed; None if the data end before it. While waiting, a process
        that `speaks` gives a notice now and then; `together` as in `closed_period`."""
        due = time.monotonic() + SAY_EVERY

        def waiting(what: str) -> None:
            nonlocal due
            self._waiting(what)
            if speaks and time.monotonic() > due:
                due = time.monotonic() + SAY_EVERY
                warnings.warn(f"waiting for {what}", NoticeWarning, stacklevel=2)

        return closed_period(self.dataset, number, waiting, together)

    def tables(self, period: Period, progress: Progress = silent) -> Tables:
        """The tables of a period."""
        return written(self._registry, self._context, period, progress, self._hand_on)

    def _hand_on(self, notices: Iterable[Notice]) -> None:
        """Hand on the notices that no earlier period had; those of two periods differ only in the
        folders that they name."""
        new = [one for one in notices if f"{type(one).__name__} {one.what}" not in self._reported]
        self._reported.update(f"{type(one).__name__} {one.what}" for one in new)
        self._found(new)

    def hold(self, number: int, period: Period) -> None:
        """Keep the tables of a period from being removed, until one is held that lies more than
        `keep` periods behind it, or this process ends."""
        for old in [one for one in self._held if one < number - self.dataset.keep]:
            os.close(self._held.pop(old))
        if number not in self._held:
            file = self._lock_of(period)
            with contextlib.suppress(OSError):  # nobody can remove tables if nobody may write there
                file.parent.mkdir(parents=True, exist_ok=True)
                self._held[number] = _locked(file, fcntl.LOCK_SH)

    def first(self, progress: Progress = silent) -> tuple[int, Tables]:
        """The first period with rows to train, which stands for the dataset."""
        number = 0
        while True:
            progress(f"waiting for period {number}", 0, None)
            period = self.wait(number)
            if period is None:
                raise DataError(
                    f"the data end before period {number}, so there is no row to train. Check "
                    "`dataset.origin` and the messages of the log."
                )
            tables = self.tables(period, progress)
            if tables.train.num_rows:
                return number, tables
            number += 1

    def closed(self, number: int) -> Iterator[tuple[int, Tables]]:
        """The periods from this one on that are closed and whose tables exist; it does not wait."""
        with contextlib.suppress(NotClosed):
            while (period := self.dataset.period(number)) is not None:
                if are_written(self._folders(period)[-1:]):
                    yield number, self.tables(period)
                number += 1

    def counts(self, number: int) -> Mapping[str, int]:
        """The counts of what came in a period, by name; empty if there is no such period."""
        period = self.wait(number)
        return {} if period is None else period.counts(self._folders(period)[0])

    def remove_before(self, number: int) -> None:
        """Remove the tables that lie more than `keep` periods behind this one, except those of the
        first period with rows, and those that another run holds: it removes them itself."""
        for left in self._registry.folder.glob(f".*{REMOVED}"):  # a kill left it
            shutil.rmtree(left, ignore_errors=True)
        first, _ = self.first()
        for old in range(number - self.dataset.keep - 1, first, -1):
            period = self.wait(old)
            folders = [] if period is None else self._folders(period)
            if not any(folder.exists() for folder in folders):
                return  # earlier ones are gone, too
            assert period is not None
            with contextlib.suppress(OSError):
                file = self._lock_of(period)
                lock = _locked(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    for folder in folders:
                        remove_tables(folder)
                    file.unlink()
                finally:
                    os.close(lock)

    def _folders(self, period: Period) -> list[Path]:
        return folders_of(self._registry, self._registry.one("dataset"), period)

    def _lock_of(self, period: Period) -> Path:
        tables = self._folders(period)[0]
        return tables.with_name(f".{tables.name}.lock")


def grows(choice: Choice) -> bool:
    """Whether the dataset that was chosen grows."""
    return isinstance(choice.record, DatasetRecord) and choice.record.grows


def _locked(file: Path, kind: int) -> int:
    """A descriptor of the file, and its lock. Only its sole holder may remove the file: others
    have then waited for a file that no longer exists, and take another."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, kind)
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _give_back(held: Mapping[int, int]) -> None:
    for descriptor in held.values():
        os.close(descriptor)
