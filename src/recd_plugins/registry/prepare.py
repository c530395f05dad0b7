"""Writes the dataset as tables on disk, once, under a name that depends on how they are made, and
then reuses them.

A dataset that grows has tables for each period."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from recd_plugins.data.dataset import SPLITS, Dataset, Split, Tables
from recd_plugins.data.files import NoSuchTable
from recd_plugins.data.growing import (
    GrowingDataset,
    NotClosed,
    Period,
    Together,
    Waiting,
    closed_period,
)
from recd_plugins.data.table import Progress, Table, silent
from recd_plugins.data.table_writer import ChunkError
from recd_plugins.errors import DataError, PluginError, RecdError, RegistryError, check_made, listed
from recd_plugins.notices import Notice, NoticeWarning
from recd_plugins.planning.remembered import remembered
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.choices import Registry
from recd_plugins.registry.option_files import NOTE as NOTE_OF_FILES
from recd_plugins.registry.option_files import (
    changed_file,
    note_files,
    note_less_files,
    outdated_by_files,
    stats_of_files,
)
from recd_plugins.registry.plugin_code import NOTE as NOTE_OF_CODE
from recd_plugins.registry.plugin_code import is_by_other_code, note_code, outdated_by_code
from recd_plugins.slots import Context, DatasetRecord, Etl
from recd_plugins.storage.uri import Location, Uri
from recd_plugins.storage.whole_file import of_path

__all__ = ["Periods", "absolute", "beside_registry", "prepared", "prepared_at"]

SAY_EVERY = 30.0
"""Seconds after which a rank that waits for a period reports it, again and again."""
REMOVED = ".removed"
"""The end of a folder's name while its content is removed."""
WAITS_SILENTLY = 1.0
"""Seconds for which a process waits silently for another one that writes tables."""


Found = Callable[[Iterable[Notice]], None]


def prepared(
    registry: Registry,
    context: Callable[[str], Context],
    progress: Progress,
    found: Found = lambda notices: None,
) -> Tables:
    """The tables of a registry, after every `etl` step; `context` gives a slot's context. `found`
    gets notices, for example of tables whose code has changed since they were written.

    Any number of processes may call it at the same time: one works, the others wait.
    """
    with beside_registry(registry):
        return _prepared(registry, context, progress, found)


@contextlib.contextmanager
def beside_registry(registry: Registry) -> Iterator[None]:
    """Inside, the error about a missing table says whether the table is beside registry.yaml."""
    try:
        yield
    except NoSuchTable as error:
        raise NoSuchTable(error.path, error.option, registry.source.path) from None


def _prepared(
    registry: Registry, context: Callable[[str], Context], progress: Progress, found: Found
) -> Tables:
    periods = Periods.of(registry, context, found=found)
    if periods is not None:
        return periods.first(progress)[1]
    chosen = (registry.one("dataset"), *registry.chosen("etl"))
    options = [(one.record.name, str(one.provider), repr(one.config)) for one in chosen]

    def opened() -> Tables:
        dataset: Dataset = registry.one("dataset").build(context("dataset"))
        return _written(registry, context, dataset, progress, found)

    # `recd advise` asks again for registries that differ only in other things.
    return remembered(("tables", str(registry.folder), repr(options)), opened)


def _written(
    registry: Registry,
    context: Callable[[str], Context],
    dataset: Dataset,
    progress: Progress,
    found: Found = lambda notices: None,
) -> Tables:
    """The tables of a dataset, or of one of its periods, after every `etl` step."""
    choice = registry.one("dataset")
    if dataset.in_place and not registry.chosen("etl"):
        with choice.named("when it wrote its tables"):
            tables = _prepared_by(dataset, registry.folder, progress, choice.who)
        found(choice.notices(dataset))
        return tables
    folders = _folders(registry, choice, dataset)
    choices = (choice, *registry.chosen("etl"))
    with _while_written(registry, folders, progress):
        _drop_others_halves(choices, folders)
        found(outdated_by_code(choices, folders))
        found(outdated_by_files(choices, folders))
        with (
            _begun(choice, folders[0], dataset),
            choice.named("when it wrote its tables"),
            _naming_chunks(choice),
        ):
            tables = _prepared_by(dataset, folders[0], progress, choice.who)
            if tables.train.source is not None:
                # A step reads the files as it likes, so their columns are those of the schema.
                tables = dataset.write(folders[0], progress)
        found(choice.notices(dataset))
        for step, folder in zip(registry.chosen("etl"), folders[1:], strict=True):
            etl = step.build(context("etl"))
            with _begun(step, folder), step.named("when it ran"), _naming_chunks(step):
                tables = _run(etl, tables, folder, progress, step.who)
            found(step.notices(etl))
    return tables


@contextlib.contextmanager
def _begun(choice: Choice, folder: Path, dataset: Dataset | None = None) -> Iterator[None]:
    """Inside, a choice writes its tables. The code and the files that make them are recorded
    first: if a kill leaves the tables incomplete, a process with other code, or other files, may
    write the rest. The fingerprint of a `dataset`, if it has one, covers its files."""
    if _are_written([folder]):
        yield
        return
    before = stats_of_files(choice)
    if before and dataset is not None and dataset.fingerprint():
        before = {}
    note_code(choice, folder)
    note_files(folder, before)
    try:
        with of_path(folder):
            yield
    except RecdError:
        if not _holds_tables(folder):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    note_less_files(folder, before, stats_of_files(choice))


def _drop_others_halves(choices: Sequence[Choice], folders: Sequence[Path]) -> None:
    """Remove incomplete tables that a kill left, if the rest would be written by other code or
    from other files."""
    for choice, folder in zip(choices, folders, strict=True):
        if _are_written([folder]) or not _holds_tables(folder):
            continue
        if is_by_other_code(choice, folder) or changed_file(choice, folder) is not None:
            _remove(folder)


def _holds_tables(folder: Path) -> bool:
    """Whether a folder has more than notes."""
    try:
        return any(one.name not in (NOTE_OF_CODE, NOTE_OF_FILES) for one in folder.iterdir())
    except FileNotFoundError:
        return False


def _prepared_by(dataset: Dataset, folder: Path, progress: Progress, who: str) -> Tables:
    tables = dataset.prepare(folder, progress)
    fix = "Return Tables(train=..., test=...) of recd_plugins.api.data."
    check_made(tables, Tables, f"{who}: its `prepare` returned", fix)
    return tables


@contextlib.contextmanager
def _naming_chunks(choice: Choice) -> Iterator[None]:
    """Inside, an error in rows that a record makes names the record."""
    try:
        yield
    except ChunkError as error:
        raise DataError(f"{choice.who}: {error}") from error


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
        if not registry.has_dataset or not _grows(choice := registry.one("dataset")):
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
        return _written(self._registry, self._context, period, progress, self._hand_on)

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
                if _are_written(self._folders(period)[-1:]):
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
                        _remove(folder)
                    file.unlink()
                finally:
                    os.close(lock)

    def _folders(self, period: Period) -> list[Path]:
        return _folders(self._registry, self._registry.one("dataset"), period)

    def _lock_of(self, period: Period) -> Path:
        tables = self._folders(period)[0]
        return tables.with_name(f".{tables.name}.lock")


def _remove(folder: Path) -> None:
    """Remove tables all at once: a part that a kill left would be read as if it were complete."""
    aside = folder.with_name(f".{folder.name}{REMOVED}")
    if aside.exists():  # a kill left it
        shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


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


def prepared_at(
    registry: Registry, context: Callable[[str], Context], path: Location
) -> Tables | None:
    """The tables of `prepared`, if one of them is at this absolute path and nothing has to be
    written for them; else None. Nothing is opened for a path that cannot be one of theirs."""
    choice = registry.one("dataset")
    if not (_is_named(choice, path) or _is_within(path, registry.folder)):
        return None
    if _grows(choice):
        return None
    dataset: Dataset = choice.build(context("dataset"))
    if dataset.in_place and not registry.chosen("etl"):
        return prepared(registry, context, silent)
    *_, last = _folders(registry, choice, dataset)
    if not _are_written([last]):
        return None
    return Tables(train=Table.open(last / "train"), test=Table.open(last / "test"))


def _grows(choice: Choice) -> bool:
    return isinstance(choice.record, DatasetRecord) and choice.record.grows


def absolute(path: Location) -> Location:
    """The absolute path, which is equal for two names of one place."""
    return path.resolve() if isinstance(path, Path) else path


def _is_named(choice: Choice, path: Location) -> bool:
    """Whether the dataset's options name this path for a split."""
    for split in SPLITS:
        named = getattr(choice.config, split, None)
        each = named if isinstance(named, tuple) else (named,)
        if any(isinstance(one, Path | Uri) and absolute(one) == path for one in each):
            return True
    return False


def _is_within(path: Location, folder: Path) -> bool:
    return isinstance(path, Path) and path.is_relative_to(folder.resolve())


def _folders(registry: Registry, choice: Choice, dataset: Dataset) -> list[Path]:
    """The folders of the dataset's tables and of what each `etl` step makes of them."""
    with choice.named("when asked what it is known by"):
        digest = dataset.fingerprint()
    whose = f"{choice.who}: its `fingerprint` returned"
    check_made(digest, str, whose, "Return a text that changes with the source's content.")
    made = []
    for one in (choice, *registry.chosen("etl")):
        digest = _digest(one, digest)
        made.append(registry.folder / f"{one.record.name}-{digest}")
    return made


def _are_written(folders: list[Path]) -> bool:
    return all((folder / split).is_dir() for folder in folders for split in SPLITS)


def _while_written(
    registry: Registry, folders: list[Path], progress: Progress
) -> contextlib.AbstractContextManager[object]:
    """A lock for what is still to be written; none if everything exists, since the folder of
    tables may belong to somebody else and must then not be written to."""
    if _are_written(folders):
        return contextlib.nullcontext()
    _check_takes_files(registry.folder)
    return _locked_for_tables(registry.folder, progress)


def _check_takes_files(folder: Path) -> None:
    """Make a folder; raises `RegistryError` if that fails, or no file can be made in it: of one of
    /proc, a lock's file looks as if another process had it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise RegistryError(
            f"tables are written to {folder}, which takes no files ({error.strerror}). Name "
            "another folder, or see to its rights and to the space on its disk.",
            "folder",
        ) from error


@contextlib.contextmanager
def _locked_for_tables(folder: Path, progress: Progress) -> Iterator[None]:
    """Inside, no other process writes tables in a folder; `progress` reports that this process
    waits for another one."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=WAITS_SILENTLY)
    except Timeout:
        progress(f"waiting for another process, which writes tables in {folder}", 0, None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _run(etl: Etl, tables: Tables, folder: Path, progress: Progress, who: str) -> Tables:
    done: dict[Split, Table] = {}
    for split in SPLITS:
        path = folder / split
        done[split] = Table.open(path) if path.is_dir() else etl.run(tables[split], path, progress)
        fix = "Return the table that it wrote, opened: `Table.open(folder)`."
        check_made(done[split], Table, f"{who}: its `run` returned", fix)
        if done[split].path != path or not path.is_dir():
            raise PluginError(
                f"{who}: its `run` returned the table {done[split].path}, where it must write one "
                f"into the folder that it is given, {path}. {fix}"
            )
    train, test = (set(done[split].schema.columns) for split in SPLITS)
    if train != test:
        raise PluginError(
            f"{who}: the train split has {listed(sorted(train - test)) or 'no column'} after its "
            f"`run`, which the test split has not, and lacks "
            f"{listed(sorted(test - train)) or 'none'}. Let it make both alike, and remove "
            f"{folder}."
        )
    return Tables(train=done["train"], test=done["test"])


def _digest(choice: Choice, before: str) -> str:
    """A digest that names what a choice makes from the previous step's output; other options give
    another folder."""
    options = dataclasses.asdict(choice.config)
    for name in choice.free:
        del options[name]
    parts = [choice.record.name, str(choice.provider), options, before]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
