"""The Parquet files of a table, found by folders, names and globs, and what the names of their
folders say of them."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import pyarrow as pa

from recd_plugins.data.iceberg_metadata import is_metadata
from recd_plugins.data.table_names import TableNames
from recd_plugins.errors import DataError, listed
from recd_plugins.notices import NoticeWarning
from recd_plugins.storage.uri import GLOB, Location, Stat, Uri

__all__ = [
    "SCHEMA_FILE",
    "UNFINISHED",
    "VOCABULARIES",
    "FileFacts",
    "NoSuchTable",
    "SnapshotKind",
    "check_none_left_behind",
    "each_once",
    "files_that_match",
    "found_files",
    "in_partitions",
    "is_glob",
    "is_hidden",
    "logs_below",
    "named_by",
    "note_links",
    "place_of",
    "snapshot_kind",
    "table_files",
    "typed_partitions",
]

SnapshotKind = Literal["delta", "iceberg", "spark", "hudi", "paimon", "lance"]
"""The programs that keep a log of a folder's files: Delta Lake, Iceberg, streams of Spark; and
others, whose logs are not read."""
UNFINISHED = "_unfinished"
"""This file marks a folder on a store as unfinished; the writer removes it last."""
SCHEMA_FILE = "schema.yaml"
"""The file beside a table's files with the schema that the table was imported by."""
VOCABULARIES = "vocabularies"
"""The folder beside a table's files with the vocabularies of its features."""
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
PART_OF_TABLE = re.compile(r".*=.*|[\d_-]+|data|bucket-\w+")
"""The names of folders within a table's: partitions, days, and where Iceberg and Paimon have their
files."""
DUCKLAKE = re.compile(r"ducklake-[0-9a-f-]{36}(-delete)?\.parquet")
"""The names of files of DuckLake, which keeps its log in a database, wherever that is."""


@dataclass(frozen=True)
class FileFacts:
    """What is known of a table's file before its rows are read."""

    size: int | None = None
    mtime_ns: int | None = None
    digest: str = ""
    """The digest of its footer, which says where each page lies and what is in it."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """The `key=value` of its folders."""
    partitions: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """Columns that have the same value in all of its rows; the file itself need not have them."""
    columns: frozenset[str] | None = None
    """The columns of its table, if a log lists them: other columns of the file are not the
    table's."""
    names: TableNames | None = None
    """What its table calls the columns of the file, if a log says so."""

    @property
    def partition_texts(self) -> list[tuple[str, str]]:
        """The columns that have one value in all rows, by name, and that value as text."""
        return sorted((name, str(value)) for name, value in self.partitions.items())

    def check_names(self, own: Collection[str], file: Location) -> None:
        """Raises `DataError` if the file has a column of the table under a name in another case."""
        lacked = (self.columns or frozenset()).difference(own)
        spelled = {name.casefold(): name for name in own} if lacked else {}
        for name in sorted(lacked):
            other = spelled.get(name.casefold(), name)
            if other not in (self.columns or ()):
                raise DataError(
                    f"{file}: has column {other!r}, which its table calls {name!r}. Here these are "
                    "two different names: write the file again with the table's name."
                )

    def beside(self, own: Collection[str]) -> FileFacts:
        """The facts without the partitions that are also among the file's `own` columns, which take
        precedence."""
        if self.partitions.keys().isdisjoint(own):
            return self
        left = {name: one for name, one in self.partitions.items() if name not in own}
        return replace(self, partitions=left)


class NoSuchTable(DataError):
    """There is nothing at the path of a table."""

    def __init__(self, path: Location, option: str = "", registry: Path | None = None) -> None:
        """`option` names the table, in the file `registry`, beside which the table may lie."""
        self.path, self.option = path, option
        super().__init__(f"{option}: {self._what(registry)}" if option else self._what(registry))

    def _what(self, registry: Path | None) -> str:
        path, glob = self.path, is_glob(self.path)
        what = "no file fits this glob" if glob else "there is no such table"
        if isinstance(path, Uri):
            return f"{path}: {what}. Check the path."
        if registry is not None and not path.is_absolute() and any(registry.parent.glob(str(path))):
            beside = registry.parent / path
            return (
                f"{path}: {what} in {Path.cwd()}, where paths of tables start; it "
                f"lies beside {registry}. Write `{self.option.rpartition('.')[2]}: {beside}`, or "
                f"start from {registry.parent.absolute()}."
            )
        start = "" if path.is_absolute() else f" It is relative to {Path.cwd()}, where you are."
        return f"{path}: {what}. Check the path.{start}{'' if glob else _neighbours(path)}"


def _neighbours(path: Path) -> str:
    """What lies where the path stops being right, the nearest names first."""
    folder = next((one for one in path.parents if one.is_dir()), None)
    if folder is None:
        return ""
    wanted = path.relative_to(folder).parts[0]
    try:
        there = [one for one in folder.iterdir() if not one.name.startswith((".", "_"))]
    except OSError:
        return ""
    names = sorted(one.name for one in there if one.is_dir() or one.suffix == ".parquet")
    near = get_close_matches(wanted, names, n=4, cutoff=0.5)
    others = listed([*near, *(one for one in names if one not in near)])
    held = f"; it holds {others}" if others else ", and no other folder or Parquet file"
    return f" {folder.absolute()} has no {wanted!r}{held}."


@contextmanager
def named_by(option: str) -> Iterator[None]:
    """Inside it, the error for a missing table says which option names the table."""
    try:
        yield
    except NoSuchTable as error:
        raise NoSuchTable(error.path, error.option or option) from None


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


def place_of(file: Location) -> str:
    """The place of a file, whatever links lead to it."""
    return os.path.realpath(file) if isinstance(file, Path) else str(file)


def check_none_left_behind(
    files: Iterable[Location], known: Mapping[Uri, Uri | None] | None = None
) -> None:
    """Raises `DataError` for files that were not found by a log and that their folder's log no
    longer lists. Folders of a store that are `known` (see `logs_below`) are not looked at again."""
    files = list(files)
    if lake := [str(file) for file in files if DUCKLAKE.fullmatch(file.name)]:
        raise DataError(
            f"{listed(lake, 2)}: of a table of DuckLake, which is not read: only its catalog, a "
            "database, knows which files a snapshot has, and which of their rows are deleted. "
            "Have DuckDB write its latest rows as Parquet: COPY (FROM LAKE.TABLE) TO "
            "'rows.parquet'. LAKE.snapshots() lists earlier ones; FROM LAKE.TABLE AT (VERSION => "
            "N) is one of them."
        )
    above: dict[Path, Path | None] = {}
    stored = dict(known or {})
    kept: dict[Location, list[Location]] = {}
    for file in files:
        if isinstance(file, Path):
            folder: Location | None = _kept_above(Path(os.path.abspath(file.parent)), above)
        else:
            folder = _kept_on_store(file.parent, stored)
        if folder is not None:
            kept.setdefault(folder, []).append(file)
    for folder, some in kept.items():
        from recd_plugins.data.snapshots import check_latest

        check_latest(folder, some)


def _kept_above(folder: Path, known: dict[Path, Path | None]) -> Path | None:
    """This folder, or the nearest above it, for which a program keeps a log of files; else None."""
    if folder not in known:
        if snapshot_kind(folder) is not None:
            known[folder] = folder
        else:
            top = folder == folder.parent
            known[folder] = None if top else _kept_above(folder.parent, known)
    return known[folder]


def _kept_on_store(folder: Uri, known: dict[Uri, Uri | None]) -> Uri | None:
    """The table's folder, if a program keeps a log of its files, else None. Each look is a request:
    partitions are skipped, and the last look is at the first folder above whose name is not that of
    a part. A folder that may not be listed has no log."""
    while True:
        part = len(folder.parts) > 2 and PART_OF_TABLE.fullmatch(folder.name)
        if folder not in known and not (part and "=" in folder.name):
            known[folder] = None
            with suppress(DataError):
                known[folder] = folder if snapshot_kind(folder, folder.listing()[1]) else None
        if not part or known.get(folder) is not None:
            return known[folder]
        folder = folder.parent


def logs_below(top: Uri, files: Iterable[Uri]) -> dict[Uri, Uri | None]:
    """For a folder whose files were all listed, and for each folder below it: the folder itself if
    a program keeps a log of its files, else None."""
    within: dict[Uri, set[str]] = {top: set()}
    for folder in {file.parent for file in files}:
        above = top
        for name in filter(None, folder.below(top).split("/")):
            within[above].add(name)
            above = above / name
            within.setdefault(above, set())
    return {one: one if snapshot_kind(one, names) else None for one, names in within.items()}


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
            return _of_snapshot(path, kind)
        files = [file for file in sorted(path.glob("*.parquet")) if not is_hidden([file.name])]
        if files:
            _note_below(path)
            return {file: FileFacts() for file in files}
        deep = sorted(path.rglob("*.parquet"))
        note_links(path)
        shown = [file for file in deep if not is_hidden(file.relative_to(path).parts)]
        below = _partitioned(path, shown)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Check its permissions, or name another "
            "path."
        ) from error
    return _in_partitions(path, below)


def _note_below(folder: Path) -> None:
    """Warn if a folder has files of its own, and the folders in it have more."""
    below = [
        file
        for one in folder.iterdir()
        if not is_hidden([one.name]) and one.name != VOCABULARIES and one.is_dir()
        for file in one.rglob("*.parquet")
        if not is_hidden(file.relative_to(folder).parts)
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
        return _of_snapshot(path, keeper)
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
    shown = {file: one for file, one in deep.items() if not is_hidden(file.below(path).split("/"))}
    check_none_left_behind(shown, logs_below(path, every))
    return _in_partitions(path, _partitioned(path, shown))


def _matches_of_store(pattern: Uri) -> dict[Location, FileFacts]:
    parts = pattern.parts
    fixed = _fixed(parts)
    base, below = pattern.above(fixed), "/".join(parts[fixed:])
    every = base.listed(deep="/" in below) if fixed else {}
    stats = base.matching(below, every)
    if not is_hidden(parts[fixed:]):
        stats = {one: at for one, at in stats.items() if not is_hidden(one.below(base).split("/"))}
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


def _in_partitions(path: Location, below: dict[Location, FileFacts]) -> dict[Location, FileFacts]:
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
        found[file] = FileFacts(size, mtime, folders=in_partitions(folders))
    return found


def in_partitions(folders: Iterable[str]) -> dict[str, str]:
    """What the names of folders say of the files in them by `key=value`."""
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    return {unquote(key): unquote(value) for key, value in pairs}


def is_glob(path: Location) -> bool:
    """Whether a path is written as a pattern of names."""
    return bool(GLOB & {*"/".join(path.parts)})


def _fixed(parts: Sequence[str]) -> int:
    """How many parts of a glob come before the first that is a pattern."""
    return next(at for at, part in enumerate(parts) if GLOB & set(part))


def is_hidden(parts: Iterable[str]) -> bool:
    """Whether a path below a folder is one that writers keep for themselves, as `_temporary/...`
    and `.part.crc`; `_day=1` is a partition."""
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)


def _of_snapshot(path: Location, kind: SnapshotKind) -> dict[Location, FileFacts]:
    """The files of the latest snapshot of a folder that a program keeps a log of."""
    from recd_plugins.data.snapshots import snapshot_files

    return snapshot_files(path, kind, None)[0]


def snapshot_kind(folder: Location, folders: Collection[str] | None = None) -> SnapshotKind | None:
    """Which program keeps a log of a folder's files, some of which may no longer belong to the
    table; None if none does. `folders` are the names of the folders in it, if they are known."""

    def has(name: str) -> bool:
        return (folder / name).is_dir() if folders is None else name in folders

    logs: dict[str, SnapshotKind] = {
        "_delta_log": "delta",
        ".hoodie": "hudi",
        "_spark_metadata": "spark",
    }
    if (found := next((kind for name, kind in logs.items() if has(name)), None)) is not None:
        return found
    if has("metadata") and is_metadata(file.name for file in (folder / "metadata").glob("*")):
        return "iceberg"
    if has("_versions") and any(True for _ in (folder / "_versions").glob("*.manifest")):
        return "lance"
    if has("schema") and (has("snapshot") or has("manifest")):
        return "paimon" if any(True for _ in (folder / "schema").glob("schema-*")) else None
    return None


def typed_partitions(files: Mapping[Location, FileFacts]) -> dict[Location, FileFacts]:
    """The values in names of folders, in one type per column: integers, dates, or else texts."""
    keys = dict.fromkeys(key for facts in files.values() for key in facts.folders)
    if not keys:
        return dict(files)
    columns: dict[str, pa.Array] = {}
    for key in keys:
        for file, facts in files.items():
            if key not in facts.folders:
                raise DataError(
                    f"{file}: is in no folder {key}=..., although others of its table are. All "
                    "files of a table must have the same partition keys: move it, or name it as a "
                    "table of its own. If it is no part of a table, name the others, as by a "
                    "glob: 'FOLDER/**/*.parquet'."
                )
        texts = [facts.folders[key] for facts in files.values()]
        columns[key] = _typed(pa.array([None if one == HIVE_NULL else one for one in texts]))
    return {
        file: replace(facts, partitions={key: columns[key][at] for key in keys})
        for at, (file, facts) in enumerate(files.items())
    }


def _typed(texts: pa.Array) -> pa.Array:
    given = [text for text in texts.to_pylist() if text is not None]
    if not given:
        return texts.cast(pa.string())
    if all(WHOLE.fullmatch(text) for text in given):
        return texts.cast(pa.int64())
    if all(DATE.fullmatch(text) for text in given):
        try:
            return texts.cast(pa.date32())
        except pa.ArrowException:
            return texts
    return texts


def files_that_match(
    pattern: Location, inside: Callable[[Path], Mapping[Location, FileFacts]]
) -> dict[Location, FileFacts]:
    """The files that match a glob, and on disk those `inside` each folder that does."""
    if isinstance(pattern, Uri):
        return _matches_of_store(pattern)
    parts = pattern.parts
    fixed = _fixed(parts)
    base = Path(*parts[:fixed])
    matched = sorted(base.glob(str(Path(*parts[fixed:])))) if base.is_dir() else []
    if not is_hidden(parts[fixed:]):
        matched = [one for one in matched if not is_hidden(one.relative_to(base).parts)]
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
