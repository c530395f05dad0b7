"""Finds everything that is wrong with a table or with foreign files in one pass, with remedies."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.checking.alike_files import (
    check_files_alike,
    of_one_format,
    types_in,
)
from recd_plugins.data.importing.checking.row_check import RowCheck
from recd_plugins.data.importing.checking.table_problems import CheckResult
from recd_plugins.data.importing.column_types import ColumnTypes
from recd_plugins.data.importing.foreign_file import ForeignFile
from recd_plugins.data.importing.surveying.asked_types import types_asked
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import absent_errors, formats_of
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.progress import Progress
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["check_files"]


def check_files(
    paths: Mapping[Location, FileFacts],
    schema: ForeignSchema | None,
    *,
    in_place: bool = False,
    tests: bool = False,
    form: TextForm | None = None,
    given: TextForm | None = None,
    absent: Collection[str],
    progress: Progress,
) -> CheckResult:
    """Read the files once, and report everything that is wrong with them under this schema.

    Files that are read `in_place`, as a registry names them, have structs where an import makes
    columns of their fields. `tests`: whether the files are a test split. Columns that are `absent`
    from a file are null there. Without a schema, the check is only whether the files can be read
    and are alike.
    """
    found = CheckResult()
    files = []
    for opened in formats_of(paths, form, given=given):
        if isinstance(opened, DataError):
            found.add_error(opened)
        else:
            files.append(_with_structs(opened, paths[opened.path]) if in_place else opened)
    if not paths:
        found.add("the table", None, "has no files", "Name a file, or a folder that holds some.")
    if not files:
        return found
    files = of_one_format(files, found)
    check_files_alike(files, found, schema, absent)
    known = len(found.problems)
    read_as = _read_as(files, found, schema, form, absent)
    if files[0].format == "jsonl" and len(found.problems) > known:
        return found  # the types of its keys are not known
    if not in_place:
        for error in absent_errors(absent, files, schema, read_as.types):
            found.add_error(error)
    rows = RowCheck(found, schema, read_as, absent, tests=tests)
    for file in files:
        rows.check_types(file, files)
    columns = rows.columns(files)
    alike = [
        file
        for file in files
        if file.format == "jsonl" or not {*columns} - {*file.columns, *absent}
    ]
    rows.read(alike, columns, progress)
    rows.conclude(next(iter(paths)))
    return found


def _with_structs(file: ForeignFile, facts: FileFacts) -> ForeignFile:
    """A file that is read in place: one of Parquet has its structs, not columns of their fields."""
    if file.format != "parquet":
        return file
    roots = dict.fromkeys(map(file.root, file.names))
    own = facts.beside(file.roots).partitions
    return dataclasses.replace(file, names=tuple(roots), nested={}, partitions=own)


def _read_as(
    files: Sequence[ForeignFile],
    found: CheckResult,
    schema: ForeignSchema | None,
    form: TextForm | None,
    absent: Collection[str],
) -> ColumnTypes:
    wanted = () if schema is None else schema.columns
    ids = () if schema is None else [one.name for one in schema.sparse]
    alike = [one for one in files if one.is_like(files[0], absent)]
    if files[0].format == "parquet":
        return ColumnTypes(
            types={name: kind for file in reversed(files) if file.format == "parquet"
                   for name, kind in types_in(file).items()}
        )  # fmt: skip
    try:
        looked_at = survey(alike, wanted, alone=bool(wanted), form=form, ids=ids)
        if schema is None:
            return looked_at.read_as
        read_as = types_asked(looked_at, schema)
        return read_as.naming(schema.hashed, files[0], schema.timestamp)
    except DataError as error:
        found.add_error(error)
        return ColumnTypes()
