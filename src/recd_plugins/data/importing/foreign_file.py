"""A foreign file: its format, its columns, and how its bytes are read."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from recd_plugins.data.parquet.table_names import TableNames
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location, input_file

__all__ = [
    "UNPACKERS",
    "ForeignFile",
    "Format",
    "cut_short",
    "gone",
    "num_bytes",
    "own_names",
    "shell_files",
]

Format = Literal["parquet", "text", "jsonl"]
NAMES = {"\t": "tab", "\x01": "^A"}
UNPACKERS = {"gzip": "gzip", "zstd": "zstd", "bz2": "bzip2", "lz4": "lz4"}
"""The command that unpacks each compression."""
SUFFIXES = (".gz", ".zst", ".bz2", ".lz4")


@dataclass(frozen=True, kw_only=True)
class ForeignFile:
    """A foreign file, and how it is read."""

    path: Location
    format: Format
    size: int = 0
    """Its size in bytes, as stored."""
    mtime_ns: int = 0
    compression: str | None = None
    names: tuple[str, ...]
    """Its columns, in order, each under a name of its own."""
    encoding: str = "utf-8"
    """The encoding of `text` and `jsonl`: one in which ASCII characters keep their bytes."""
    delimiter: str = ","
    """The character that separates the fields of `text`, or several characters, as `::`."""
    quotes: bool = True
    """Whether `text` may have fields in double quotes."""
    escapes: bool = False
    r"""Whether \" is a quote within these, as "" is."""
    header: bool = True
    """Whether the first line of `text` names its columns."""
    lists: tuple[str, ...] = ()
    """The columns of `text` that the header declares to be lists, separated by blanks."""
    start: int = 0
    """Unpacked bytes before the first row."""
    lines_before: int = 0
    """Lines before the first row: those of the header, and empty ones above."""
    renamed: tuple[str, ...] = ()
    """The names that more than one column has; all but the first got a number."""
    roots: tuple[str, ...] = ()
    """The columns of Parquet as the file has them, each under a name of its own."""
    nested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns that are fields of structs: the path to each, root first."""
    partitions: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """The columns given by its folders `key=value` or by its table's log: they have one value in
    all of its rows."""
    table_names: TableNames | None = None
    """What its table calls its columns, if a log says so: `roots` and `nested` use these names."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Its own columns, and those given by its folders."""
        return (*self.names, *self.partitions)

    def root(self, name: str) -> str:
        """The column of Parquet that a column is, or is a field of."""
        return self.nested.get(name, (name,))[0]

    def __str__(self) -> str:
        packed = f", {self.compression}" if self.compression else ""
        if self.encoding != "utf-8":
            packed = f", {self.encoding}{packed}"
        if self.format == "parquet":
            return f"Parquet{packed}"
        if self.format == "jsonl":
            return f"lines of JSON{packed}"
        parted = NAMES.get(self.delimiter, repr(self.delimiter))
        return f"text separated by {parted}, {'a header' if self.header else 'no header'}{packed}"

    def is_like(self, other: ForeignFile, absent: Collection[str]) -> bool:
        """Whether two files have the same format, as files of one table must: columns of text are
        the same; if headers name them, they may be in any order, and the `absent` ones may be
        missing."""
        if (self.format, self.header) != (other.format, other.header):
            return False
        if self.format != "text" or self.names == other.names:
            return self.delimiter == other.delimiter
        return self.header and {*self.names} ^ {*other.names} <= {*absent}

    def open(self) -> pa.NativeFile:
        """The bytes, unpacked."""
        file = input_file(self.path)
        return pa.CompressedInputStream(file, self.compression) if self.compression else file


def num_bytes(files: Sequence[ForeignFile]) -> int:
    """The size of the files as stored."""
    return sum(file.size for file in files)


def own_names(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A unique name for each column, and the names that several had."""
    seen: dict[str, None] = {}
    twice: dict[str, None] = {}
    for position, name in enumerate(names, 1):
        own = name or f"column_{position}"
        number = 2
        while own in seen:
            twice[name] = None
            own = f"{name}_{number}"
            number += 1
        seen[own] = None
    return tuple(seen), tuple(twice)


def shell_files(path: Location, made: str) -> str:
    """How a shell takes a file, from any folder, and the one that a command is to make of it."""
    return f"{shlex.quote(str(path))} > {shlex.quote(made)}"


def cut_short(path: Location, compression: str | None, what: str, error: Exception) -> DataError:
    """The error for a file that cannot be read to its end."""
    if isinstance(error, FileNotFoundError):
        return gone(path)
    cure = "download it again, or write it again."
    if compression is not None:
        rest = path.stem if path.suffix in SUFFIXES else f"{path.name}.part"
        cure = (
            "download it again; or import what can be unpacked, without the last line, which may "
            f"be incomplete: {UNPACKERS[compression]} -dc {shlex.quote(str(path))} | sed '$d' > "
            f"{shlex.quote(rest)}"
        )
    return DataError(f"{path}: {what} ({error}). It was cut short or damaged: {cure}")


def gone(path: Location) -> DataError:
    """The error for a file that is no longer the one that was found."""
    return DataError(
        f"{path}: was removed or written over while the files were read. Run the command again, "
        "and leave them as they are until it has ended."
    )
