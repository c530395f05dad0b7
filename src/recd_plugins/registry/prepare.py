"""The dataset of a registry as tables on disk, through every `etl` step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from recd_plugins.data.dataset import SPLITS, Dataset, Tables
from recd_plugins.data.files.missing_table import NoSuchTable
from recd_plugins.data.progress import Progress, silent
from recd_plugins.data.table import Table
from recd_plugins.planning.remembered import remembered
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.periods import Periods, grows
from recd_plugins.registry.registry import Registry
from recd_plugins.registry.written_tables import Found, are_written, folders_of, written
from recd_plugins.slots import Context
from recd_plugins.storage.uri import Location, Uri

__all__ = ["absolute", "beside_registry", "prepared", "prepared_at"]


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


def prepared_at(
    registry: Registry, context: Callable[[str], Context], path: Location
) -> Tables | None:
    """The tables of `prepared`, if one of them is at this absolute path and nothing has to be
    written for them; else None. Nothing is opened for a path that cannot be one of theirs."""
    choice = registry.one("dataset")
    if not (_is_named(choice, path) or _is_within(path, registry.folder)):
        return None
    if grows(choice):
        return None
    dataset: Dataset = choice.build(context("dataset"))
    if dataset.in_place and not registry.chosen("etl"):
        return prepared(registry, context, silent)
    *_, last = folders_of(registry, choice, dataset)
    if not are_written([last]):
        return None
    return Tables(train=Table.open(last / "train"), test=Table.open(last / "test"))


@contextlib.contextmanager
def beside_registry(registry: Registry) -> Iterator[None]:
    """Inside, the error about a missing table says whether the table is beside registry.yaml."""
    try:
        yield
    except NoSuchTable as error:
        raise NoSuchTable(error.path, error.option, registry.source.path) from None


def absolute(path: Location) -> Location:
    """The absolute path, which is equal for two names of one place."""
    return path.resolve() if isinstance(path, Path) else path


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
        return written(registry, context, dataset, progress, found)

    # `recd advise` asks again for registries that differ only in other things.
    return remembered(("tables", str(registry.folder), repr(options)), opened)


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
