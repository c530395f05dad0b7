"""What the notes of an import say of its rows, tables and columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recd_plugins.data.dataset import Split
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.foreign_file import ForeignFile
from recd_plugins.data.importing.splits import SplitBy

__all__ = [
    "notes_of_changes",
    "notes_of_dots",
    "notes_of_no_ids",
    "notes_of_one_label",
    "notes_of_same_names",
    "notes_of_share",
]


def notes_of_share(split: SplitBy, asked: ForeignSchema, rows: Mapping[str, int]) -> Iterator[str]:
    """A note if the share of test rows is far from the share that was asked for."""
    share = rows["test"] / sum(rows.values())
    if abs(share - split.share) > max(0.03, 0.2 * split.share):
        name = split.column or asked.timestamp
        yield (
            f"{share:.1%} of the rows are for testing, not {split.share:.1%}: {name} has few "
            "values, or many rows share one, and rows of one value stay together"
        )


def notes_of_one_label(
    schema: ForeignSchema, done: Sequence[Mapping[str, Any]], splits: Sequence[Split]
) -> Iterator[str]:
    """A note if the rows for testing in the segments `done` all have one label."""
    if "test" not in splits:
        return
    found = {number for one in done for number in one["labels"].get("test", ())}
    if len(found) == 1:
        yield (
            f"{schema.label} is {found.pop():g} in each of the test rows, of which no AUC and NE "
            "can be computed: give another `--test-share`, or split by `--split-by hash:COLUMN`"
        )


def notes_of_no_ids(schema: ForeignSchema) -> Iterator[str]:
    """A note if the table has no sparse feature, before `recd init` refuses it."""
    if not schema.sparse:
        yield (
            "the table has no sparse feature, so that `recd init` finds no model for it: every "
            "model here embeds at least one. List its columns of ids under `sparse` of the schema "
            "and import again; or train a model of your own, which `recd plugins new NAME --slot "
            "model` begins"
        )


def notes_of_dots(schema: ForeignSchema) -> Iterator[str]:
    """A note for each table whose name no PyTorch module can have, before a model is made of it."""
    for name in schema.conformed.table_sizes():
        if "." in name:
            yield (
                f"table {name!r} has a dot in its name, which PyTorch does not allow in names of "
                f"modules: write `table: {name.replace('.', '_')}` for its features in the schema "
                "and import again, or no model of `recd train` takes it"
            )


def notes_of_same_names(asked: ForeignSchema, files: Sequence[ForeignFile]) -> Iterator[str]:
    """A note for each column of the schema whose name several columns of a file have."""
    places = {name: file.path for file in reversed(files) for name in file.renamed}
    for name in asked.columns:
        if name in places:
            yield (
                f"{places[name]}: several columns are called {name!r}; the first was read, and the "
                f"schema may name the next {name}_2"
            )


def notes_of_changes(files: Sequence[ForeignFile]) -> Iterator[str]:
    """A note for each file on a disk that is no longer as it was when the import began."""
    for path, size, mtime_ns in ((one.path, one.size, one.mtime_ns) for one in files):
        if not isinstance(path, Path):
            continue
        now = path.stat() if path.exists() else None
        if now is None or (now.st_size, now.st_mtime_ns) != (size, mtime_ns):
            yield (
                f"{path}: has changed since the import began, so the table may lack some of its "
                "rows, and their ids may be those of unknown values; import a file to which "
                "nobody writes"
            )
