"""Checks that the foreign files of one table are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import pyarrow as pa

from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.checking.table_problems import CheckResult
from recd_plugins.data.importing.foreign_file import ForeignFile
from recd_plugins.data.importing.struct_fields import type_at
from recd_plugins.data.parquet.footer import arrow_schema, footer_of

__all__ = ["check_files_alike", "of_one_format", "types_in"]


def of_one_format(files: Sequence[ForeignFile], found: CheckResult) -> list[ForeignFile]:
    """The files of the format that most have; each other file is an error."""
    common, _ = Counter(one.format for one in files).most_common(1)[0]
    first = next(one for one in files if one.format == common)
    for file in files:
        if file.format != common:
            found.add(
                file.path,
                None,
                f"is {file}, and {first.path} is {first}",
                "Take it out of the table, or write both alike.",
            )
    return [one for one in files if one.format == common]


def check_files_alike(
    files: Sequence[ForeignFile],
    found: CheckResult,
    schema: ForeignSchema | None,
    absent: Collection[str],
) -> None:
    """Add to `found` where files of one format differ from the first. They may differ in columns
    that the schema does not name or that are absent, and in types that it accepts."""
    first = files[0]
    for file in files:
        for name in file.renamed:
            found.add(
                file.path,
                name,
                "is there more than once",
                "Give each column a name of its own where the file is made.",
            )
    for file in files[1:]:
        gone = [name for name in first.columns if name not in (*file.columns, *absent)]
        more = [name for name in file.columns if name not in (*first.columns, *absent)]
        if schema is None and file.format != "jsonl" and (gone or more):
            differs = " and ".join(
                f"{word} {', '.join(map(repr, names))}"
                for word, names in (("lacks", gone), ("has", more))
                if names
            )
            found.add(
                file.path,
                None,
                f"{differs}, other than {first.path}",
                "Files of one table have the same columns: write it again, or take it out.",
            )
    if first.format == "parquet" and schema is None:
        _check_types_alike(files, found)


def _check_types_alike(files: Sequence[ForeignFile], found: CheckResult) -> None:
    first = types_in(files[0])
    for file in files[1:]:
        for name, kind in types_in(file).items():
            if name in first and kind != first[name]:
                found.add(
                    file.path,
                    name,
                    f"is {kind}, and {first[name]} in {files[0].path}",
                    "Write both alike.",
                )


def types_in(file: ForeignFile) -> dict[str, pa.DataType]:
    """The types of the columns in a Parquet file."""
    schema = arrow_schema(footer_of(file.path, file.table_names), file.path)
    roots = dict(zip(file.roots, schema.types, strict=True))
    found = {}
    for name in file.names:
        where = file.nested.get(name, (name,))
        found[name] = type_at(roots[where[0]], where)
    return {**found, **{name: one.type for name, one in file.partitions.items()}}
