"""Writes a dataset, or a period of one, as tables through every `etl` step, in folders whose names
depend on how the tables are made; what is there already is reused."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from recd_plugins.data.dataset import SPLITS, Dataset, Split, Tables
from recd_plugins.data.progress import Progress
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import ChunkError
from recd_plugins.errors import DataError, PluginError, RecdError, RegistryError, check_made, listed
from recd_plugins.notices import Notice
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.option_files import NOTE as NOTE_OF_FILES
from recd_plugins.registry.option_files import (
    changed_file,
    leave_out_written_files,
    note_files,
    outdated_by_files,
    stats_of_files,
)
from recd_plugins.registry.plugin_code import NOTE as NOTE_OF_CODE
from recd_plugins.registry.plugin_code import is_by_other_code, note_code, outdated_by_code
from recd_plugins.registry.registry import Registry
from recd_plugins.slots import Context, Etl
from recd_plugins.storage.whole_file import of_path

__all__ = ["REMOVED", "Found", "are_written", "folders_of", "remove_tables", "written"]

REMOVED = ".removed"
"""The end of a folder's name while its content is removed."""
WAITS_SILENTLY = 1.0
"""Seconds for which a process waits silently for another one that writes tables."""

Found = Callable[[Iterable[Notice]], None]
"""A function that is handed notices."""


def written(
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
    folders = folders_of(registry, choice, dataset)
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


def folders_of(registry: Registry, choice: Choice, dataset: Dataset) -> list[Path]:
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


def are_written(folders: list[Path]) -> bool:
    return all((folder / split).is_dir() for folder in folders for split in SPLITS)


def remove_tables(folder: Path) -> None:
    """Remove tables all at once: a part that a kill left would be read as if it were complete."""
    aside = folder.with_name(f".{folder.name}{REMOVED}")
    if aside.exists():  # a kill left it
        shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _digest(choice: Choice, before: str) -> str:
    """A digest that names what a choice makes from the previous step's output; other options give
    another folder."""
    options = dataclasses.asdict(choice.config)
    for name in choice.free:
        del options[name]
    parts = [choice.record.name, str(choice.provider), options, before]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _while_written(
    registry: Registry, folders: list[Path], progress: Progress
) -> contextlib.AbstractContextManager[object]:
    """A lock for what is still to be written; none if everything exists, since the folder of
    tables may belong to somebody else and must then not be written to."""
    if are_written(folders):
        return contextlib.nullcontext()
    _check_takes_files(registry.folder)
    return _locked_for_tables(registry.folder, progress)


def _check_takes_files(folder: Path) -> None:
    """Make a folder; `RegistryError` if that fails, or if it takes no files. Without this, a job
    would wait for ever for a lock in a folder of /proc, as if another process had it."""
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


def _drop_others_halves(choices: Sequence[Choice], folders: Sequence[Path]) -> None:
    """Remove incomplete tables that a kill left, if the rest would be written by other code or
    from other files."""
    for choice, folder in zip(choices, folders, strict=True):
        if are_written([folder]) or not _holds_tables(folder):
            continue
        if is_by_other_code(choice, folder) or changed_file(choice, folder) is not None:
            remove_tables(folder)


@contextlib.contextmanager
def _begun(choice: Choice, folder: Path, dataset: Dataset | None = None) -> Iterator[None]:
    """Inside, a choice writes its tables. The code and the files that make them are recorded
    first: if a kill leaves the tables incomplete, a process with other code, or other files, may
    write the rest. The fingerprint of a `dataset`, if it has one, covers its files."""
    if are_written([folder]):
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
    leave_out_written_files(folder, before, stats_of_files(choice))


def _holds_tables(folder: Path) -> bool:
    """Whether a folder has more than notes."""
    try:
        return any(one.name not in (NOTE_OF_CODE, NOTE_OF_FILES) for one in folder.iterdir())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _naming_chunks(choice: Choice) -> Iterator[None]:
    """Inside, an error in rows that a record makes names the record."""
    try:
        yield
    except ChunkError as error:
        raise DataError(f"{choice.who}: {error}") from error


def _prepared_by(dataset: Dataset, folder: Path, progress: Progress, who: str) -> Tables:
    tables = dataset.prepare(folder, progress)
    fix = "Return Tables(train=..., test=...) of recd_plugins.api.data."
    check_made(tables, Tables, f"{who}: its `prepare` returned", fix)
    return tables


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
