"""One Parquet file: its footer, reading its columns, writing it; an error says what a file is that
is not Parquet."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from recd_plugins.compat.kept_memory import decode_into_kept
from recd_plugins.data.files import FileFacts
from recd_plugins.data.parquet.chunk_columns import column_of_each_chunk
from recd_plugins.data.parquet.coalesced_reads import FetchedFile
from recd_plugins.data.parquet.left_out import (
    LEFT_OUT,
    expanded,
    expanded_batches,
    held_once,
    lists_left_out,
)
from recd_plugins.data.parquet.pages import first_byte
from recd_plugins.data.table_names import TableNames
from recd_plugins.errors import DataError, so_many
from recd_plugins.storage.no_file import no_file
from recd_plugins.storage.uri import Location
from recd_plugins.storage.whole_file import of_path

if TYPE_CHECKING:
    from recd_plugins.data.parquet.lists import ListColumn

__all__ = [
    "OPTIONS",
    "FileWriter",
    "Footer",
    "OpenedFile",
    "all_batches",
    "arrow_schema",
    "footer_in",
    "footer_of",
    "opened",
    "read_footer",
]

R = TypeVar("R")
TAIL = 64 << 10
"""Bytes that are read from the end of a file at once."""
MAGIC, ENCRYPTED = b"PAR1", b"PARE"
KINDS = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\x03\x04", "a zip archive"),
    (b"BZh", "bzip2"),
    (b"ARROW1", "an Arrow file"),
    (b"FEA1", "a Feather file"),
    (b"ORC", "an ORC file"),
    (b"Obj\x01", "an Avro file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"{", "JSON"),
    (b"[", "JSON"),
    (b"<", "HTML or XML"),
    (b"version https://git-lfs", "a pointer of Git LFS, whose file was not fetched"),
)
"""First bytes of files that are not Parquet, and what such a file is."""
LOOK = 4096
"""How many bytes are looked at to recognise a text file."""
OPTIONS = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us"}
"""How every Parquet file is opened: old times (INT96) may have any year, such as the 9999 that
stands for "none" in warehouses, which does not fit in ns."""
SIGNED = 28
"""The bytes after a readable footer, in a file with encrypted columns."""
UNKNOWN_TYPES = (
    "some of its columns have a type that Arrow does not read (%s). Write the table with others."
)
NO_KEY = "which is not read, because no key is known here. Write it without encryption."


class Footer(NamedTuple):
    """A footer, and the digest that identifies it."""

    metadata: pq.FileMetaData
    digest: str
    raw: bytes

    @classmethod
    def of(cls, raw: bytes) -> Footer:
        """The facts from the bytes between the footer and the end of the file."""
        digest = hashlib.sha256(raw).hexdigest()[:32]
        return cls(pq.read_metadata(pa.BufferReader(raw)), digest, raw)

    def under(self, names: TableNames | None, file: Location) -> Footer:
        """The same footer with its table's names of columns, which the digest then covers too;
        `raw` stays as it lies in the file."""
        named = self.raw if names is None else names.applied(self.raw, file)
        return self if named is self.raw else Footer.of(named)._replace(raw=self.raw)


def footer_of(file: Location, names: TableNames | None = None) -> pq.FileMetaData:
    """The metadata in the footer; raises `DataError` for a file that is not a whole Parquet
    file."""
    return read_footer(file, names).metadata


def read_footer(file: Location, names: TableNames | None = None) -> Footer:
    """The footer and its digest, with the columns under the `names` of its table; raises
    `DataError` for anything but a whole Parquet file."""
    _check_is_file(file)
    try:
        with _source(file) as source:
            return footer_in(source, file, names)
    except DataError:
        raise
    except (UnicodeDecodeError, pa.ArrowException, OSError, ValueError) as error:
        raise _not_whole(file, error) from error


def footer_in(source: Any, file: Location, names: TableNames | None) -> Footer:
    """The footer of a file that is open."""
    raw = _try(file, lambda: _tail(source))
    return _readable(file, Footer.of(raw)).under(names, file)


def opened(file: Location, facts: FileFacts | None = None, *, buffer_size: int = 0) -> OpenedFile:
    """The opened file, whose pages' checksums are verified; raises `DataError` for anything but a
    whole Parquet file, and for one that has changed since its `facts` were found. For a file on
    disk, a buffer keeps huge columns from being read whole."""
    _check_is_file(file)
    try:
        source = _source(file)
        footer = footer_in(source, file, None if facts is None else facts.names)
        if facts is not None and facts.digest not in ("", footer.digest):
            raise DataError(
                f"{file}: has changed since the table was opened. Do not write to a table while it "
                "is read; start again with the table as it is."
            )
        if isinstance(file, Path) and buffer_size:
            source.close()
            source = None
        return OpenedFile(file, source, footer, facts, buffer_size=buffer_size)
    except DataError:
        raise
    except (UnicodeDecodeError, pa.ArrowException, OSError, ValueError) as error:
        raise _not_whole(file, error) from error


class OpenedFile(pq.ParquetFile):
    """An open Parquet file: pages' checksums are verified, partitions are columns, columns near
    each other are read in one I/O, and on a store several I/Os run at a time."""

    def __init__(
        self,
        location: Location,
        source: Any,
        footer: Footer,
        facts: FileFacts | None,
        *,
        buffer_size: int,
    ) -> None:
        self.location = location
        self.digest = footer.digest
        self.partitions = {} if facts is None else dict(facts.partitions)
        self.left_out = lists_left_out(footer.metadata, location)
        """The features of which the file leaves out lists, and how many ids each has when
        expanded."""
        self._fetched = None if source is None else FetchedFile(location, source)
        self._io = 0.0
        bytes_of = location if self._fetched is None else pa.PythonFile(self._fetched, mode="r")
        options: dict[str, Any] = {
            "buffer_size": buffer_size if self._fetched is None else 0,
            "metadata": footer.metadata,
            **OPTIONS,
        }
        super().__init__(bytes_of, **options)
        decode_into_kept(self, bytes_of, **options)

    def read_row_group(
        self,
        i: int,
        columns: Sequence[str] | None = None,
        *args: Any,
        expand: bool = True,
        **options: Any,
    ) -> pa.Table:
        """Columns of the file and of its partitions. Without `expand`, those that leave out lists
        come as dictionaries."""
        own = self._own(columns)
        lists = self._lists(i, own)
        if self._fetched is not None:
            ahead = own
            if lists and self._fetched.is_on_disk:
                # The threads that decode lists read them: each reads what its cache then still has.
                ahead = _others(own, lists)
            began = time.perf_counter()
            self._fetched.fetch(_spans(self.metadata, i, self._names_of_chunks, ahead))
            self._io += time.perf_counter() - began
        rows = self._decoded(i, own, lists, *args, **options)
        if self.left_out:
            rows = held_once(rows, self.left_out, f"{self.location}, row group {i}")
        rows = self._with_partitions(rows, columns)
        return expanded(rows, self.left_out) if expand else rows

    def _lists(self, i: int, columns: list[str] | None) -> Sequence[ListColumn]:
        """The columns that kernels of our own decode."""
        if self._fetched is None or columns is None or not {*columns} <= {*self._schema.names}:
            return ()
        from recd_plugins.data.parquet.lists import list_columns  # numba: a second

        return list_columns(self.metadata, self._schema, i, self._names_of_chunks, columns)

    def _decoded(
        self,
        i: int,
        columns: list[str] | None,
        lists: Sequence[ListColumn],
        *,
        use_threads: bool = True,
        **options: Any,
    ) -> pa.Table:
        """Columns of the file: lists by kernels of our own where these can, and the others by
        Arrow at the same time."""
        read = partial(super().read_row_group, i, use_threads=use_threads, **options)
        if self._fetched is None or columns is None or not lists:
            return read(columns)
        from recd_plugins.data.parquet.lists import decode_lists

        decoding = decode_lists(lists, self._fetched, threads=use_threads)
        rows = read(_others(columns, lists))
        found = dict(zip(rows.column_names, rows.columns, strict=True))
        for one in decoding:
            self._io += one.io_seconds
            if one.lists is not None:
                found[one.name] = one.lists
        if left := [name for name in columns if name not in found]:
            others = read(left)
            found |= dict(zip(others.column_names, others.columns, strict=True))
        wanted = dict.fromkeys(columns)
        described = pa.schema(map(self._schema.field, wanted), self._schema.metadata)
        return pa.Table.from_arrays([found[name] for name in wanted], schema=described)

    @cached_property
    def _schema(self) -> pa.Schema:
        """`schema_arrow`, which pyarrow makes anew each time."""
        return self.schema_arrow

    @cached_property
    def _names_of_chunks(self) -> list[str]:
        return column_of_each_chunk(self._schema)

    def longer(self, column: str) -> float:
        """How many ids a column has, divided by those in the file, which leaves out lists."""
        return self._longer.get(column, 1.0)

    @cached_property
    def _longer(self) -> dict[str, float]:
        held: Counter[str] = Counter()
        for number in range(self.num_row_groups if self.left_out else 0):
            group = self.metadata.row_group(number)
            for chunk in map(group.column, range(group.num_columns)):
                held[chunk.path_in_schema.rsplit(".", 2)[0]] += chunk.num_values
        return {name: max(1.0, ids / max(1, held[name])) for name, ids in self.left_out.items()}

    def close(self, force: bool = False) -> None:
        super().close(force)
        if self._fetched is not None:
            self._fetched.close()

    def io_seconds(self) -> float:
        """The seconds spent reading bytes since the last call."""
        found, self._io = self._io, 0.0
        return found

    def iter_batches(
        self, batch_size: int = 65_536, *, columns: Sequence[str] | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        where, groups = str(self.location), options.get("row_groups")
        batches = super().iter_batches(batch_size, columns=self._own(columns), **options)
        batches = all_batches(batches, self.metadata, groups, where)
        for batch in expanded_batches(batches, self.left_out, where):
            rows = self._with_partitions(pa.Table.from_batches([batch]), columns)
            yield from rows.combine_chunks().to_batches()

    def _own(self, columns: Sequence[str] | None) -> list[str] | None:
        if columns is None or not self.partitions:
            return None if columns is None else list(columns)
        there = set(self.schema_arrow.names)
        return [name for name in columns if name in there or name not in self.partitions]

    def _with_partitions(self, rows: pa.Table, columns: Sequence[str] | None) -> pa.Table:
        if not self.partitions:
            return rows
        wanted = [*rows.column_names, *self.partitions] if columns is None else list(columns)
        for name in wanted:
            if name in self.partitions and name not in rows.column_names:
                value = self.partitions[name]
                rows = rows.append_column(
                    pa.field(name, value.type), pa.repeat(value, rows.num_rows)
                )
        return rows.select(list(dict.fromkeys(wanted)))


def all_batches(
    batches: Iterator[pa.RecordBatch],
    footer: pq.FileMetaData,
    groups: Sequence[int] | None,
    where: str,
) -> Iterator[pa.RecordBatch]:
    """The batches that Arrow reads of some row groups, or of all; `DataError` unless they have all
    rows: Arrow ends a column of lists at a page without values, and does not say so."""
    groups = range(footer.num_row_groups) if groups is None else groups
    rows = left = sum(footer.row_group(group).num_rows for group in groups)
    for batch in batches:
        left -= batch.num_rows
        yield batch
    if left:
        raise DataError(
            f"{where}, row group {', '.join(map(str, groups))}: Arrow reads {rows - left:,} of "
            f"{so_many(rows, 'row')}, as of lists that begin with an empty page. Write the file "
            "again, with larger pages or row groups."
        )


class FileWriter(pq.ParquetWriter):
    """Writes a Parquet file; on a store it appears, whole, once it is closed."""

    def __init__(self, location: Location, schema: pa.Schema, **options: Any) -> None:
        self._location = location
        self._sink = None if isinstance(location, Path) else location.created()
        if self._sink is None:  # a name with a colon is a path here, not a URI
            options["filesystem"] = LocalFileSystem()
        place = location.absolute() if isinstance(location, Path) else self._sink
        with self._explained():
            super().__init__(place, schema, **options)

    def write_table(self, table: pa.Table, *args: Any, **options: Any) -> None:
        with self._explained():
            super().write_table(table, *args, **options)

    def close(self) -> None:
        with self._explained():
            super().close()
            if self._sink is not None:
                self._sink.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        if isinstance(self._location, Path):
            with of_path(self._location):
                yield
            return
        try:
            yield
        except OSError as error:
            raise self._location.explained(error) from None


def arrow_schema(
    footer: pq.FileMetaData, file: Location, facts: FileFacts | None = None
) -> pa.Schema:
    """The types of a file's columns in its table, including partitions; raises `DataError` if Arrow
    has no such types."""
    try:
        schema = footer.schema.to_arrow_schema()
    except pa.ArrowException as error:
        raise DataError(f"{file}: {UNKNOWN_TYPES % error}") from error
    if lacking := lists_left_out(footer, file):
        whole = (one.with_nullable(one.nullable and one.name not in lacking) for one in schema)
        rest = {key: value for key, value in schema.metadata.items() if key != LEFT_OUT}
        schema = pa.schema(whole, rest)
    if facts is None:
        return schema
    known, columns = facts.beside(schema.names).partitions, facts.columns
    if columns is not None:
        facts.check_names(schema.names, file)
        schema = pa.schema([one for one in schema if one.name in columns], schema.metadata)
    for name, value in known.items():
        schema = schema.append(pa.field(name, value.type))
    return schema


def _check_is_file(file: Location) -> None:
    if isinstance(file, Path) and (what := no_file(file)):
        raise DataError(f"{file}: is {what}, not a file. Take it out of the table.")


def _source(file: Location) -> Any:
    return pa.OSFile(str(file)) if isinstance(file, Path) else file.opened()


def _try(file: Location, work: Callable[[], R]) -> R:
    return work() if isinstance(file, Path) else file.reading(work)


def _tail(source: Any) -> bytes:
    """The footer of an open file, as it lies there, in one read unless it is long."""
    size = source.size()
    end = source.read_at(min(size, TAIL), max(0, size - TAIL))
    if len(end) < 12 or end[-4:] != MAGIC:
        raise ValueError("the magic bytes of Parquet are not at its end")
    length = int.from_bytes(end[-8:-4], "little") + 8
    if length > size:
        raise ValueError(f"its footer would have {length} bytes, of {size} of the file")
    if length > len(end):
        end = source.read_at(length, size - length)
        if len(end) < length:
            raise ValueError("it ends within its footer")
    return bytes(end[-length:])


def _readable(file: Location, footer: Footer) -> Footer:
    """The footer; raises `DataError` if columns are encrypted, on which Arrow would end the
    process."""
    if len(footer.raw) - 8 - footer.metadata.serialized_size == SIGNED:
        raise DataError(f"{file}: has columns that are encrypted, {NO_KEY}")
    return footer


def _not_whole(file: Location, error: Exception) -> DataError:
    if isinstance(error, pa.ArrowNotImplementedError):
        return DataError(f"{file}: {UNKNOWN_TYPES % error}")
    if isinstance(error, UnicodeDecodeError):
        return DataError(
            f"{file}: column {error.object!r} has a name that is not UTF-8 ({error.reason}). "
            "Rename it where the table is made."
        )
    what, cure = _what_is(file)
    if not cure:
        return DataError(f"{file}: {what}")
    return DataError(f"{file}: {what} ({error}). {cure}")


def _others(columns: Sequence[str] | None, lists: Sequence[ListColumn]) -> list[str]:
    """The columns that are not among these lists."""
    ours = {one.field.name for one in lists}
    return [name for name in columns or () if name not in ours]


def _spans(
    footer: pq.FileMetaData, group: int, names: Sequence[str], columns: Sequence[str] | None
) -> list[tuple[int, int]]:
    """First byte and size of each chunk of some columns of a row group, whose chunks are of the
    columns `names`."""
    described, wanted = footer.row_group(group), {*(names if columns is None else columns)}
    spans = []
    for index, name in enumerate(names):
        if name in wanted:
            chunk = described.column(index)
            spans.append((first_byte(chunk), chunk.total_compressed_size))
    return spans


def _what_is(file: Location) -> tuple[str, str]:
    """What a file that cannot be read as Parquet seems to be, and what to do; the second is empty
    if the first says it."""
    again = "write it again, or take it out of the table."
    try:
        with file.open("rb") as binary:
            head = binary.read(LOOK)
    except OSError:
        return "cannot be read", "Check its permissions and its disk."
    if not head:
        return "not a whole Parquet file, but empty", f"It was never finished: {again}"
    if head.startswith(ENCRYPTED):
        return f"is encrypted, {NO_KEY}", ""
    if MAGIC.startswith(head[:4]):
        return "not a whole Parquet file", f"It was cut short or damaged: {again}"
    kind = next((kind for magic, kind in KINDS if head.startswith(magic)), None)
    if kind is None and _is_text(head):
        kind = "text, as CSV or TSV is"
    return (
        f"not a Parquet file, but {kind or 'something else'}",
        "CSV, TSV and JSONL become a table by `recd data import`; else write it as Parquet, or "
        "take it out of the table.",
    )


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        head[: LOOK - 4].decode()
    except UnicodeDecodeError:
        return False
    return True
