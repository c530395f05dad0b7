"""The Parquet files of a table, found by folders, names, globs and the logs of other programs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from recd_plugins.data.files.left_behind import check_none_left_behind
from recd_plugins.data.files.logs import logs_below, snapshot_kind
from recd_plugins.data.files.missing_table import NoSuchTable
from recd_plugins.data.files.partitions import partitions_of, typed_partitions
from recd_plugins.data.files.paths import (
    SCHEMA_FILE,
    UNFINISHED,
    VOCABULARIES,
    fixed_parts,
    is_glob,
    is_hidden,
)
from recd_plugins.data.files.snapshots import snapshot_files
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.errors import DataError, listed
from recd_plugins.notices import NoticeWarning
from recd_plugins.storage.uri import Location, Stat, Uri

__all__ = [
    "check_has_files",
    "each_once",
    "files_that_match",
    "found_files",
    "note_links",
    "table_files",
    "without_folders",
]


def table_files(paths: Location | Sequence[Location]) -> tuple[Location, ...]:
    """The files of a table in order, each once: the *.parquet of a folder, and what matches a glob.

    `DataError` for a path without any.
    """
    return tuple(found_files(paths))


def found_files(paths: Location | Sequence[Location]) -> dict[Location, FileFacts]:
    """`table_files`, with what is known of each before it is opened, including the columns that its
    folders name by `key=value` (Hive's partitions)."""
    each = [paths] if isinstance(paths, Path | Uri) else list(paths)
    if not each:
        raise DataError("a table needs at least one path. Name a folder, a file or a glob.")
    found: dict[Location, FileFacts] = {}
    by_no_log: list[Location] = []
    for path in each:
        inside = _files(path)
        for file, facts in inside.items():
            found.setdefault(file, facts)
        if isinstance(path, Path) and not (path.is_dir() and snapshot_kind(path)):
            by_no_log += inside
    check_none_left_behind(by_no_log)
    return typed_partitions(each_once(found))


def each_once(files: Mapping[Location, FileFacts]) -> dict[Location, FileFacts]:
    """The files, each once, whatever links lead to it and however it is named, unless its folders
    say different things of it."""
    found: dict[Location, FileFacts] = {}
    seen: set[object] = set()
    for file, facts in files.items():
        known: object = file
        if isinstance(file, Path):
            with suppress(OSError):
                stat = file.stat()
                known = (stat.st_dev, stat.st_ino, *sorted(facts.folders.items()))
        if known not in seen:
            seen.add(known)
            found[file] = facts
    return found


def files_that_match(
    pattern: Location, inside: Callable[[Path], Mapping[Location, FileFacts]]
) -> dict[Location, FileFacts]:
    """The files that match a glob, and on disk those `inside` each folder that does."""
    if isinstance(pattern, Uri):
        return _matches_of_store(pattern)
    parts = pattern.parts
    fixed = fixed_parts(parts)
    base = Path(*parts[:fixed])
    matched = sorted(base.glob(str(Path(*parts[fixed:])))) if base.is_dir() else []
    if not is_hidden(parts[fixed:]):
        matched = [one for one in matched if not is_hidden(one.relative_to(base).parts)]
    matched = [one for one in matched if not _is_vocabulary(one, one.relative_to(base).parts)]
    found: dict[Location, FileFacts] = {}
    for one in matched:
        every = inside(one) if one.is_dir() else {}
        if any(facts.partitions for facts in every.values()):  # a log in the folder says so
            found |= every
        else:
            below = [file for file in every if isinstance(file, Path)]
            for file, facts in _partitioned(base, below or [one]).items():
                found[file] = replace(every.get(file, facts), folders=facts.folders)
    if not found:
        raise NoSuchTable(pattern)
    for folder in dict.fromkeys([base, *(file.parent for file in found)]):
        if (folder / UNFINISHED).exists():
            raise _not_whole(folder)
    return found


def _files(path: Location) -> dict[Location, FileFacts]:
    if isinstance(path, Uri):
        return _files_of_store(path)
    if is_glob(path) and not path.exists():
        return files_that_match(path, _files)
    try:
        if not path.exists():
            raise NoSuchTable(path)
        if not path.is_dir():
            return {path: FileFacts()}
        if (path / UNFINISHED).exists():  # it was copied from a store
            raise _not_whole(path)
        if (kind := snapshot_kind(path)) is not None:
            return snapshot_files(path, kind, None)[0]
        own = [file for file in sorted(path.glob("*.parquet")) if not is_hidden([file.name])]
        files = without_folders(own)
        if files:
            _note_below(path)
            return {file: FileFacts() for file in files}
        deep = sorted(path.rglob("*.parquet"))
        note_links(path)
        named = [file for file in deep if not is_hidden(file.relative_to(path).parts)]
        named = [file for file in named if not _is_vocabulary(file, file.relative_to(path).parts)]
        shown = without_folders(named)
        below = _partitioned(path, shown)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Check its permissions, or name another "
            "path."
        ) from error
    return _all_partitioned(path, below)


def without_folders(files: Iterable[Path]) -> list[Path]:
    """The files among these, whose names end in .parquet; `DataError` for a folder without any in
    it, which has the name of a table or of a file of one, and no rows."""
    found = []
    for file in files:
        if file.is_dir():
            check_has_files(file)
        else:
            found.append(file)
    return found


def check_has_files(folder: Path) -> None:
    """`DataError` for a folder by the name of a .parquet file without any file in it."""
    if not any(not is_hidden([one.name]) for one in folder.rglob("*") if not one.is_dir()):
        raise DataError(
            f"{folder}: is an empty folder by the name of a file, as a write that failed leaves. "
            "Take it out, or write it again."
        )


def _is_vocabulary(file: Location, below: Sequence[str]) -> bool:
    """Whether a file is a vocabulary that an import keeps beside a table's files; `below` are the
    parts of its path below what was named."""
    beside_schema = file.parent.parent / SCHEMA_FILE
    return [*below[-2:-1]] == [VOCABULARIES] and beside_schema.exists()


def _note_below(folder: Path) -> None:
    """Warn if a folder has files of its own, and the folders in it have more."""
    below = [
        file
        for one in folder.iterdir()
        if not is_hidden([one.name]) and one.name != VOCABULARIES and one.is_dir()
        for file in one.rglob("*.parquet")
        if not is_hidden(file.relative_to(folder).parts) and not file.is_dir()
    ]
    if below:
        _note(
            f"{folder}: its own .parquet files are read, and not {len(below):,} in its folders, "
            f"as {min(below).relative_to(folder)}. To read all, name {folder}/**/*.parquet."
        )


def note_links(folder: Path) -> None:
    """Warn if a folder has links to other folders, which are not followed: they may form a
    cycle."""
    links = [
        str((Path(top) / name).relative_to(folder))
        for top, names, _ in os.walk(folder)
        for name in names
        if not is_hidden([name]) and (Path(top) / name).is_symlink()
    ]
    if links:
        _note(
            f"{folder}: is read without {listed(sorted(links), 4)}, because links to folders are "
            "not followed. Name them too, if they belong to the table."
        )


def _note(what: str) -> None:
    warnings.warn(what, NoticeWarning, stacklevel=2)


def _not_whole(folder: Location) -> DataError:
    return DataError(
        f"{folder}: is not whole: its writer has not finished, or was ended. Wait for it, or "
        "write it again."
    )


def _files_of_store(path: Uri) -> dict[Location, FileFacts]:
    """`_files`, by as few requests as possible: a listing has sizes and times too."""
    if is_glob(path):
        return _matches_of_store(path)
    kind = path.kind()
    if kind == "File":
        check_none_left_behind([path])
        return {path: FileFacts()}
    top, folders = path.listing() if kind == "Directory" else ({}, frozenset[str]())
    if any(file.name == UNFINISHED for file in top):
        raise _not_whole(path)
    if (keeper := snapshot_kind(path, folders)) is not None:
        return snapshot_files(path, keeper, None)[0]
    files: dict[Location, FileFacts] = {
        file: FileFacts(stat.st_size, stat.st_mtime_ns)
        for file, stat in top.items()
        if file.name.endswith(".parquet") and not is_hidden([file.name])
    }
    if files:
        check_none_left_behind(files, {path: None})
        return files
    every = path.listed(deep=True) if kind == "Directory" else {}
    deep = path.matching("**/*.parquet", every)
    if not deep and not top:
        bucket = path.above(1)
        if path.store.keys and not bucket.exists():
            raise DataError(
                f"{path}: there is no bucket {bucket.name!r}. Check its name, and that the store "
                "is the right one (AWS_ENDPOINT_URL for s3)."
            )
        raise NoSuchTable(path)
    shown = {
        file: one
        for file, one in deep.items()
        if not is_hidden(parts := file.below(path).split("/")) and not _is_vocabulary(file, parts)
    }
    check_none_left_behind(shown, logs_below(path, every))
    return _all_partitioned(path, _partitioned(path, shown))


def _matches_of_store(pattern: Uri) -> dict[Location, FileFacts]:
    parts = pattern.parts
    fixed = fixed_parts(parts)
    base, below = pattern.above(fixed), "/".join(parts[fixed:])
    every = base.listed(deep="/" in below) if fixed else {}
    stats = base.matching(below, every)
    if not is_hidden(parts[fixed:]):
        stats = {one: at for one, at in stats.items() if not is_hidden(one.below(base).split("/"))}
    stats = {
        one: at for one, at in stats.items() if not _is_vocabulary(one, one.below(base).split("/"))
    }
    if not stats:
        raise NoSuchTable(pattern)
    folders = {base, *(one.parent for one in stats)}
    for one in every:
        if one.name == UNFINISHED and one.parent in folders:
            raise _not_whole(one.parent)
    known = logs_below(base, every)
    if "/" not in below:
        known[base] = base if snapshot_kind(base, base.listing()[1]) else None
    check_none_left_behind(stats, known)
    return _partitioned(base, stats)


def _all_partitioned(path: Location, below: dict[Location, FileFacts]) -> dict[Location, FileFacts]:
    """The files below a folder; raises `DataError` unless there are some, all in partitions."""
    if below and all(facts.folders for facts in below.values()):
        return below
    if below:
        first = next(iter(below))
        raise DataError(
            f"{path}: holds no .parquet file itself, but {first} is in a folder below. To read all "
            f"such files, name the table {path}/**/*.parquet."
        )
    raise DataError(
        f"{path}: holds no .parquet file, so it is not a table. CSV, TSV and JSONL become one by "
        "`recd data import`."
    )


def _partitioned(
    base: Location, files: Iterable[Path] | Mapping[Uri, Stat]
) -> dict[Location, FileFacts]:
    """The files with what their folders below `base` and the store's listing say of them."""
    found: dict[Location, FileFacts] = {}
    for file in files:
        if isinstance(file, Uri):
            assert isinstance(base, Uri)
            assert isinstance(files, Mapping)
            folders, stat = file.below(base).split("/")[:-1], files[file]
            size, mtime = stat.st_size, stat.st_mtime_ns
        else:
            assert isinstance(base, Path)
            folders, size, mtime = list(file.relative_to(base).parts[:-1]), None, None
        found[file] = FileFacts(size, mtime, folders=partitions_of(folders))
    return found
