"""The foreign files of one table: the files that are named, and all files of named folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.data.files.footers import AT_ONCE
from recd_plugins.data.files.found import check_has_files, each_once, files_that_match, note_links
from recd_plugins.data.files.left_behind import check_none_left_behind
from recd_plugins.data.files.logs import logs_below, snapshot_kind
from recd_plugins.data.files.partitions import partitions_of, typed_partitions
from recd_plugins.data.files.paths import SCHEMA_FILE, VOCABULARIES, is_glob, is_hidden
from recd_plugins.data.files.snapshots import snapshot_files
from recd_plugins.data.importing.foreign_file import ForeignFile
from recd_plugins.data.importing.formats import format_of
from recd_plugins.data.importing.struct_fields import ELEMENTS, fields_lacked
from recd_plugins.data.importing.text.delimited import check_delimiter
from recd_plugins.data.importing.text.encodings import checked_encoding
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.table import carries_schema
from recd_plugins.errors import DataError, listed, nearest, so_many
from recd_plugins.storage.no_file import no_file
from recd_plugins.storage.uri import Location, Stat, Uri

if TYPE_CHECKING:
    from recd_plugins.data.foreign import ForeignSchema

__all__ = ["absent_errors", "files_of", "foreign_files", "formats_of"]

NOTES = (SCHEMA_FILE, VOCABULARIES)
MOST_REFUSED = 10
"""How many unreadable files one error lists at most."""


def foreign_files(
    paths: Sequence[Location],
    form: TextForm | None = None,
    *,
    absent: Collection[str] = (),
    given: TextForm | None = None,
) -> tuple[ForeignFile, ...]:
    """The files of one table, in order: the files that are named, and all files of named folders.

    The format of a file follows from its content, unless the form of text says it; `given` is the
    part of the form that options gave. Raises `DataError` for a file that is missing, empty or
    unreadable, and for text files that differ in columns other than those that may be `absent`.
    """
    files: list[ForeignFile] = []
    refused: list[DataError] = []
    for one in formats_of(files_of(paths), form, given=given):
        if isinstance(one, DataError):
            refused.append(one)
        else:
            files.append(one)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        more = "".join(f"\n  {error}" for error in refused[:MOST_REFUSED])
        raise DataError(f"{len(refused)} files cannot be read; the first of them:{more}")
    first = files[0]
    for number, file in enumerate(files[1:], 1):
        if first.format == "text" and file.format == "text" and file.names != first.names:
            if first.header and not file.header and len(file.names) == len(first.names):
                # Parts of one export, of which only the first has a header.
                files[number] = replace(file, names=first.names)
                continue
            if first.header and file.header and {*file.names} ^ {*first.names} <= {*absent}:
                continue
        elif file.format == first.format:
            continue
        cure = "import them apart."
        if file.format == first.format and file.header and first.header:
            lacked = listed(sorted(({*file.names} ^ {*first.names}) - {*absent}), 6)
            cure = f"import them separately, or give `recd data import --absent NAME` for {lacked}."
        raise DataError(
            f"{file.path} is {file}, with columns {listed(file.names, 6)}; {first.path} is "
            f"{first}, with {listed(first.names, 6)}. Files of one table must be alike: {cure} "
            f"If one is no part of the table, name the others{_by_a_glob(files)}."
        )
    return tuple(files)


def _by_a_glob(files: Sequence[ForeignFile]) -> str:
    """How to name the files that end as most do, and of as many rather those that are no text;
    empty if all end alike."""
    endings = Counter(Path(str(one.path)).suffix for one in files)
    texts = {Path(str(one.path)).suffix for one in files if one.format == "text"}
    usual = max(endings, key=lambda ending: (endings[ending], ending not in texts))
    return f", as by a glob: 'FOLDER/*{usual}'" if len(endings) > 1 and usual else ""


def files_of(paths: Sequence[Location]) -> dict[Location, FileFacts]:
    """The files of one table in order, each with what is known of it: the columns in the names of
    its folders and, for a file in a store, its size.

    All files in a folder and below it count, and those that match a glob. If a program keeps a log
    of the folder, only those of the latest snapshot count.
    """
    found: dict[Location, FileFacts] = {}
    settled: set[Location] = set()
    """Files that a log names, or of which it is known already that none leaves them behind."""
    known: dict[Uri, Uri | None] = {}

    def of_folder(folder: Location) -> Mapping[Location, FileFacts]:
        if (kind := snapshot_kind(folder)) is None:
            return _inside(folder, known)
        named, _ = snapshot_files(folder, kind, None)
        settled.update(named)
        return named

    for path in paths:
        if path.is_dir():
            found |= of_folder(path)
        elif is_glob(path) and not path.exists():
            matched = files_that_match(path, of_folder)
            settled.update(file for file in matched if isinstance(file, Uri))
            found |= matched
        else:
            _check_is_file(path)
            found[path] = FileFacts()
    check_none_left_behind([file for file in found if file not in settled], known)
    return typed_partitions(each_once(found))


def absent_errors(
    absent: Collection[str],
    files: Sequence[ForeignFile],
    schema: ForeignSchema | None,
    read_as: Collection[str],
) -> Iterator[DataError]:
    """An error for each `absent` column that no file has.

    A column that is among the keys in `read_as` is no error: lines of JSON have it.
    """
    for name in absent:
        known = name in read_as
        if known or any(name in file.columns for file in files):
            continue  # text files may differ in a column that the schema does not name
        if schema is None:
            names = dict.fromkeys(name for file in files for name in file.columns)
            yield DataError(f"--absent: no file has a column {name!r}; {nearest(name, names)}")
        elif name not in schema.columns:
            yield DataError(
                f"--absent: the schema names no {name!r}; {nearest(name, schema.columns)}"
            )
        else:
            yield DataError(
                f"--absent: none of the files ({len(files)}) has {name!r}. Take it out of "
                "the schema."
            )


def formats_of(
    files: Mapping[Location, FileFacts],
    form: TextForm | None = None,
    *,
    given: TextForm | None = None,
) -> list[ForeignFile | DataError]:
    """The format of each file, or the error why it is unknown; several files are opened at a time.

    `given` is what options say of these files, by default the whole form: it is an error if it does
    not fit a file. The rest of the form is from a schema: it describes the text from which the
    schema was made, and other files may have their own names.
    """
    form = form or TextForm()
    named = form if given is None else given
    if form.delimiter is not None:
        check_delimiter(form.delimiter)
    encoding = checked_encoding("utf-8" if form.encoding is None else form.encoding)

    def look(path: Location) -> ForeignFile | DataError:
        try:
            return _foreign_file(path, files[path], form, encoding, named)
        except DataError as error:
            return error

    stores = any(isinstance(path, Uri) for path in files)
    with ThreadPoolExecutor(min(AT_ONCE[stores], len(files) or 1)) as pool:
        return list(pool.map(look, files))


def _inside(folder: Location, known: dict[Uri, Uri | None]) -> dict[Location, FileFacts]:
    """All files in a folder and below it, in order, except hidden ones.

    For a store, folders with a log of their files are added to `known`.
    """
    below: dict[Location, str] = {}
    stats: Mapping[Any, Stat] = {}
    if isinstance(folder, Uri):
        stats = folder.listed(deep=True)
        below.update({file: file.below(folder) for file in stats})
        known.update(logs_below(folder, stats))
    else:
        every = sorted(folder.rglob("*"))
        for one in every:
            if not one.is_dir():
                below[one] = one.relative_to(folder).as_posix()
            elif one.suffix == ".parquet" and not is_hidden(one.relative_to(folder).parts):
                check_has_files(one)
        note_links(folder)
    shown_ = {file: name for file, name in below.items() if not is_hidden(name.split("/"))}
    shown_ = _without_notes(shown_)
    if not shown_:
        raise DataError(f"{folder}: is an empty folder. Name a file, or a folder of files.")
    found: dict[Location, FileFacts] = {}
    for file, name in shown_.items():
        if isinstance(file, Path):  # a store lists only what is there
            _check_is_file(file)
        size, mtime = stats.get(file, (None, None))
        found[file] = FileFacts(size, mtime, folders=partitions_of(name.split("/")[:-1]))
    return found


def _without_notes(files: dict[Location, str]) -> dict[Location, str]:
    """The files without those that `recd data import` keeps beside a table's files: the schema and
    the vocabularies, which hold no rows."""
    notes = {file for file, name in files.items() if name.partition("/")[0] in NOTES}
    rows = [file for file in files if file not in notes]
    if notes and rows and _is_own(rows[0]):
        return {file: files[file] for file in rows}
    return files


def _is_own(file: Location) -> bool:
    """Whether a file belongs to a table that `recd` has written."""
    try:
        return file.suffix == ".parquet" and carries_schema(file)
    except DataError:  # the reader will report it
        return False


def _check_is_file(path: Location) -> None:
    if isinstance(path, Path) and (what := no_file(path)):
        raise DataError(f"{path}: is {what}, not a file. Name a file, or a folder of files.")
    if not path.exists():
        if isinstance(path, Path) and path.is_symlink():
            to = os.readlink(path)
            raise DataError(f"{path}: is a link to {to}, which is not there. Take it out.")
        raise DataError(f"{path}: there is no such file. Check the path.")


def _foreign_file(
    path: Location, facts: FileFacts, form: TextForm, encoding: str, given: TextForm
) -> ForeignFile:
    """The format of one file; a column in the file takes precedence over one of its folders.

    If a log describes the table, the file has only the columns that the log names.
    """
    file = format_of(path, form, encoding, facts.names)
    if facts.columns is not None:
        facts.check_names(file.roots, path)
        left = tuple(name for name in file.names if _is_of_table(file, name, facts))
        file = replace(file, names=left)
    _check_is_text(file, given)
    if form.names and (given.names or not _names_itself(file, form.names)):
        file = _with_names(file, form.names)
    size, mtime_ns = facts.size, facts.mtime_ns or 0
    if size is None:
        stat = path.stat()
        size, mtime_ns = stat.st_size, stat.st_mtime_ns
    own = fields_lacked(facts.partitions, file.names, file.nested)
    return replace(file, partitions=own, size=size, mtime_ns=mtime_ns)


def _is_of_table(file: ForeignFile, name: str, facts: FileFacts) -> bool:
    """Whether a column, or a field of a struct, belongs to the table that a log describes."""
    if facts.names is not None:
        return facts.names.has(file.nested.get(name, (name,)), ELEMENTS)
    return facts.columns is None or file.root(name) in facts.columns


def _check_is_text(file: ForeignFile, given: TextForm) -> None:
    """Raise `DataError` if options say how to read text, but the file is not text."""
    if file.format == "text":
        return
    header = "--header" if given.header else "--no-header"
    named = {"--delimiter": given.delimiter, header: given.header, "--names": given.names or None}
    if file.format == "parquet":  # lines of JSON have an encoding, too
        named["--encoding"] = given.encoding
    options = " and ".join(option for option, value in named.items() if value is not None)
    if options:
        raise DataError(
            f"{file.path}: is {file}, whose columns are called {listed(file.names, 6)} there. "
            f"{options} would do nothing, because it is for text alone: take it out."
        )


def _names_itself(file: ForeignFile, names: Sequence[str]) -> bool:
    """Whether a file's own column names take precedence over a schema's.

    Those of Parquet and JSON do. Those of a header do, unless it has as many names as the schema
    and none in common: then the schema renamed its columns.
    """
    if file.format != "text":
        return True
    return file.header and (len(file.names) != len(names) or not {*names}.isdisjoint(file.names))


def _with_names(file: ForeignFile, names: Sequence[str]) -> ForeignFile:
    """The text file with these column names."""
    if not len({*names} - {""}) == len(names) == len(file.names):
        raise DataError(
            f"{file.path}: is {file}, with {so_many(len(file.names), 'column')}, and {len(names)} "
            "names are given. Give one of its own to each column of text, by `--names` or `text` "
            "of the schema."
        )
    own = dict(zip(file.names, names, strict=True))
    return replace(
        file, names=tuple(names), lists=tuple(own[name] for name in file.lists), renamed=()
    )
