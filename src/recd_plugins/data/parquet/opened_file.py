"""An open Parquet file, from which columns of row groups are read."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.compat.kept_memory import decode_into_kept
from recd_plugins.data.parquet.chunk_columns import column_of_each_chunk
from recd_plugins.data.parquet.coalesced_reads import FetchedFile
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.parquet.footer import Footer, footer_in, opened_bytes
from recd_plugins.data.parquet.left_out import (
    expanded,
    expanded_batches,
    held_once,
    lists_left_out,
)
from recd_plugins.data.parquet.not_parquet import read_as_parquet
from recd_plugins.data.parquet.pages import first_byte
from recd_plugins.errors import DataError, so_many
from recd_plugins.storage.uri import Location

if TYPE_CHECKING:
    from recd_plugins.data.parquet.lists import ListColumn

__all__ = ["OPTIONS", "OpenedFile", "all_batches", "opened"]

OPTIONS = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us"}
"""How every Parquet file is opened: old times (INT96) may have any year, such as the 9999 that
stands for "none" in warehouses, which does not fit in ns."""


def opened(file: Location, facts: FileFacts | None = None, *, buffer_size: int = 0) -> OpenedFile:
    """The opened file, whose pages' checksums are verified; raises `DataError` for anything but a
    whole Parquet file, and for one that has changed since its `facts` were found. For a file on
    disk, a buffer keeps huge columns from being read whole."""
    with read_as_parquet(file):
        version = _version(file)
        source = opened_bytes(file)
        footer = footer_in(source, file, None if facts is None else facts.names)
        if facts is not None and facts.digest not in ("", footer.digest):
            raise _changed(file)
        if isinstance(file, Path) and buffer_size:
            source.close()
            source = None
        return OpenedFile(file, source, footer, facts, version, buffer_size=buffer_size)


class OpenedFile(pq.ParquetFile):
    """An open Parquet file: pages' checksums are verified, partitions are columns, columns near
    each other are read in one I/O, and on a store several I/Os run at a time."""

    def __init__(
        self,
        location: Location,
        source: Any,
        footer: Footer,
        facts: FileFacts | None,
        version: tuple[int, ...] | None,
        *,
        buffer_size: int,
    ) -> None:
        self.location = location
        self._version = version
        self.digest = footer.digest
        self._names = None if facts is None else facts.names
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
        with self._unchanged():
            if self._fetched is not None:
                ahead = own
                if lists and self._fetched.is_on_disk:
                    # Threads that decode lists read them: each reads what its cache then still has.
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

    def dedupe_factor(self, column: str) -> float:
        """The ids of a column over those in the file, which may leave out lists."""
        return self._dedupe_factors.get(column, 1.0)

    @cached_property
    def _dedupe_factors(self) -> dict[str, float]:
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
        batches = all_batches(self._each_unchanged(batches), self.metadata, groups, where)
        for batch in expanded_batches(batches, self.left_out, where):
            rows = self._with_partitions(pa.Table.from_batches([batch]), columns)
            yield from rows.combine_chunks().to_batches()

    def _each_unchanged(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, each read while the file stayed as it was."""
        while True:
            with self._unchanged():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Raises `DataError` at its end if somebody has written over the file since it was opened:
        what was read inside may be rows of another file, and an error inside is due to that. A file
        that was removed or replaced by another stays readable as it was, as does one that was only
        touched."""
        try:
            yield
        finally:
            before, now = self._version, _version(self.location)
            if before and now and now[:2] == before[:2] and now != before:
                if not self._has_its_footer():
                    raise _changed(self.location)
                self._version = now

    def _has_its_footer(self) -> bool:
        """Whether the file on disk has the footer with which it was opened."""
        try:
            with read_as_parquet(self.location), opened_bytes(self.location) as source:
                return footer_in(source, self.location, self._names).digest == self.digest
        except DataError:
            return False

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


def _version(file: Location) -> tuple[int, ...] | None:
    """The device and number of a file on disk, then its size and time; None if it is not there, and
    for a file of a store, which nobody writes over while it is read."""
    if not isinstance(file, Path):
        return None
    try:
        now = os.stat(file)
    except OSError:
        return None
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns


def _changed(file: Location) -> DataError:
    return DataError(
        f"{file}: has changed since the table was opened. Do not write to a table while it is "
        "read; start again with the table as it is."
    )


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
