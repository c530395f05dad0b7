"""The dataset as tables on disk: written once under a name that says how, then reused."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from recd_plugins.data.dataset import SPLITS, Dataset, Tables
from recd_plugins.data.table import Progress, Table, silent
from recd_plugins.registry.choices import Choice, Registry
from recd_plugins.slots import Context, Etl
from recd_plugins.storage.uri import Location, Uri

__all__ = ["absolute", "prepared", "there"]


def prepared(registry: Registry, context: Callable[[str], Context], progress: Progress) -> Tables:
    """The tables of a registry, through every `etl` step; `context` is a slot's.

    Any number of processes may call it at a time: one works, the others wait.
    """
    choice = registry.one("dataset")
    dataset: Dataset = choice.build(context("dataset"))
    if dataset.in_place and not registry.chosen("etl"):
        with choice.named("when it wrote its tables"):
            return dataset.prepare(registry.folder, progress)
    folders = _folders(registry, choice, dataset)
    with _while_written(registry, folders):
        with choice.named("when it wrote its tables"):
            tables = dataset.prepare(folders[0], progress)
            if tables.train.source is not None:
                # A step reads the files as it likes, so their columns are those of the schema.
                tables = dataset.write(folders[0], progress)
        for step, folder in zip(registry.chosen("etl"), folders[1:], strict=True):
            etl = step.build(context("etl"))
            with step.named("when it ran"):
                tables = _run(etl, tables, folder, progress)
    return tables


def there(registry: Registry, context: Callable[[str], Context], path: Location) -> Tables | None:
    """The same tables, if one of them lies at this absolute path and nothing has to be written for
    them. Nothing is opened for a path that can be none of theirs."""
    choice = registry.one("dataset")
    if not (_is_named(choice, path) or _is_within(path, registry.folder)):
        return None
    dataset: Dataset = choice.build(context("dataset"))
    if dataset.in_place and not registry.chosen("etl"):
        return prepared(registry, context, silent)
    *_, last = _folders(registry, choice, dataset)
    if not _are_written([last]):
        return None
    return Tables(train=Table.open(last / "train"), test=Table.open(last / "test"))


def absolute(path: Location) -> Location:
    """The path by which two names of one place are known."""
    return path.resolve() if isinstance(path, Path) else path


def _is_named(choice: Choice, path: Location) -> bool:
    """Whether the dataset's options name the path as that of a split."""
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
    made = []
    for one in (choice, *registry.chosen("etl")):
        digest = _digest(one, digest)
        made.append(registry.folder / f"{one.record.name}-{digest}")
    return made


def _are_written(folders: list[Path]) -> bool:
    return all((folder / split).is_dir() for folder in folders for split in SPLITS)


def _while_written(
    registry: Registry, folders: list[Path]
) -> contextlib.AbstractContextManager[object]:
    """A lock for what is still to be written; none where all of it is there, for a folder of
    tables may be another's, which nobody may write into."""
    from filelock import FileLock

    if _are_written(folders):
        return contextlib.nullcontext()
    registry.folder.mkdir(parents=True, exist_ok=True)
    lock: contextlib.AbstractContextManager[object] = FileLock(registry.folder / ".lock")
    return lock


def _run(etl: Etl, tables: Tables, folder: Path, progress: Progress) -> Tables:
    done = {
        split: Table.open(folder / split)
        if (folder / split).is_dir()
        else etl.run(tables[split], folder / split, progress)
        for split in SPLITS
    }
    return Tables(train=done["train"], test=done["test"])


def _digest(choice: Choice, before: str) -> str:
    """Names what a choice makes of what came before it: other options, another folder."""
    parts = [choice.record.name, str(choice.provider), dataclasses.asdict(choice.config), before]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
