"""Rows of foreign files, block by block: in bounded memory, and starting at any block."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.data.conform.values import without_views
from recd_plugins.data.foreign import null_instead_of
from recd_plugins.data.importing.column_types import ColumnTypes
from recd_plugins.data.importing.foreign_file import ForeignFile, gone, num_bytes
from recd_plugins.data.importing.struct_fields import field_at, type_at
from recd_plugins.data.importing.text.json_rows import json_rows
from recd_plugins.data.importing.text.text_rows import text_rows
from recd_plugins.data.importing.text.whole_lines import Lines, cut_lines
from recd_plugins.data.parquet.footer import footer_in
from recd_plugins.data.parquet.left_out import expanded_batches, lists_left_out
from recd_plugins.data.parquet.opened_file import OPTIONS, all_batches
from recd_plugins.errors import DataError, nearest
from recd_plugins.launch.machine_cores import machine_cores
from recd_plugins.storage.uri import Location, input_file

__all__ = [
    "Block",
    "Position",
    "blocks",
    "check_there",
    "damaged_group",
    "mapped",
    "opened_parquet",
    "types_of",
]

R = TypeVar("R")
BATCH_ROWS = 65_536
"""Rows of one block of Parquet."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position that reading the files has reached."""

    file: int = 0
    """The file's number."""
    at: int = 0
    """How many of its unpacked bytes were read; for Parquet, how many row groups."""
    row: int = 0
    """How many lines were read; for Parquet, how many rows."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some rows that are not yet parsed: `rows` may be called by any thread."""

    file: ForeignFile
    content: Lines | pa.Table
    first: int
    """The number of the first line, or of the first row of Parquet, counted from 1."""
    after: Position | None
    """The start of the next block; None within a row group, where reading cannot begin."""
    done: int
    """Packed bytes of all files that have been read by then."""

    @property
    def where(self) -> str:
        if isinstance(self.content, Lines):
            return self.content.where
        return f"{self.file.path}, from row {self.first:,} on"

    def rows(self, columns: Sequence[str], read_as: ColumnTypes) -> pa.Table:
        """The named columns, in this order, including those given by its folders, and nulls for
        those that it lacks."""
        own = _own_columns(self.file, columns)
        if not isinstance(self.content, Lines):
            rows = self.content
        elif self.file.format == "jsonl":
            rows = json_rows(self.content, own, read_as)
        else:
            rows = text_rows(self.content, own, read_as)
        there = {*rows.column_names}  # Arrow makes a new list each time
        for name in columns:
            if name not in there:
                value = self.file.partitions.get(name)
                if value is None:
                    value = pa.scalar(None, read_as.types.get(name, pa.null()))
                rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return rows.select(list(columns))


def _own_columns(file: ForeignFile, columns: Sequence[str]) -> list[str]:
    """Those of these columns that the file itself has; at least one, to count its rows by."""
    keys_may_come, there = file.format == "jsonl", {*file.names}
    return [
        name for name in columns
        if name in there or (keys_may_come and name not in file.partitions)
    ] or [*(file.names or file.roots)[:1]]  # fmt: skip


def blocks(
    files: Sequence[ForeignFile],
    columns: Sequence[str],
    start: Position | None = None,
    absent: Collection[str] = (),
) -> Iterator[Block]:
    """The files' blocks, one after another; `columns` are those that Parquet reads, of which a file
    may lack those that are `absent`."""
    start = start or Position()
    before = num_bytes(files[: start.file])
    for index in range(start.file, len(files)):
        file = files[index]
        position = start if index == start.file else Position(file=index)
        check_there(file, columns, absent)
        try:
            if file.format == "parquet":
                yield from _parquet_blocks(file, position, before, columns)
            else:
                yield from _line_blocks(file, position, before)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise gone(file.path) from error
        before += file.size


def mapped(
    make: Callable[[Block], R],
    files: Sequence[ForeignFile],
    columns: Sequence[str],
    *,
    start: Position | None = None,
    workers: int | None = None,
    progress: Callable[[str, int, int | None], None],
    what: str,
    absent: Collection[str] = (),
) -> Iterator[tuple[Block, R]]:
    """Each block with what is made of it, in order; made on all cores, some blocks ahead."""
    total, workers = num_bytes(files), workers or machine_cores()
    progress(what, 0, total)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        waiting: deque[tuple[Block, Future[R]]] = deque()
        stack.callback(lambda: [future.cancel() for _, future in waiting])
        for block in blocks(files, columns, start, absent):
            waiting.append((block, pool.submit(make, block)))
            if len(waiting) > workers:
                first, future = waiting.popleft()
                yield first, future.result()
                progress(what, first.done, total)
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    progress(what, total, total)


def check_there(file: ForeignFile, columns: Sequence[str], absent: Collection[str]) -> None:
    """Raises `DataError` for a column that the file lacks, unless it is one of the `absent`."""
    there = {*file.columns, *absent}
    for name in columns:
        # A key of JSON may come later.
        if name not in there and file.format != "jsonl":
            cure = null_instead_of(name)
            named = f", which the schema names; {nearest(name, file.columns)}"
            raise DataError(
                f"{file.path}: lacks column {name!r}{f'. {cure}' if cure else named} If some "
                f"files may lack it, give `--absent {name}`: there `nulls` of the schema decides."
            )


def _line_blocks(file: ForeignFile, start: Position, before: int) -> Iterator[Block]:
    for lines, at, row, read in cut_lines(file, start.at, start.row):
        yield Block(
            file=file,
            content=lines,
            first=lines.first,
            after=Position(file=start.file, at=at, row=row),
            done=before + read,
        )


def _parquet_blocks(
    file: ForeignFile, start: Position, before: int, columns: Sequence[str]
) -> Iterator[Block]:
    columns = _own_columns(file, columns)
    wheres = [file.nested.get(name, (name,)) for name in columns]
    at = {name: index for index, name in enumerate(file.roots)}
    indices = [at[where[0]] for where in wheres]
    with input_file(file.path) as source, opened_parquet(source, file) as opened:
        groups, row = opened.num_row_groups, start.row
        paths = opened.schema_arrow.names
        # If columns share a name, Arrow reads all of them or none, so each is found by its place.
        named = [paths[index] for index in indices]
        places = _places_among_same(paths)
        for group in range(start.at, groups):
            try:
                left = opened.metadata.row_group(group).num_rows
                batches = opened.iter_batches(
                    BATCH_ROWS, row_groups=[group], columns=list(dict.fromkeys(named))
                )
                for batch in batches:
                    names = batch.schema.names
                    read = dict(zip(zip(names, _places_among_same(names), strict=True), count()))
                    found = [
                        field_at(batch.column(read[paths[index], places[index]]), where)
                        for index, where in zip(indices, wheres, strict=True)
                    ]
                    left -= batch.num_rows
                    yield Block(
                        file=file,
                        content=without_views(pa.Table.from_arrays(found, names=list(columns))),
                        first=row + 1,
                        after=None
                        if left
                        else Position(file=start.file, at=group + 1, row=row + batch.num_rows),
                        done=before + file.size * (group + (not left)) // groups,
                    )
                    row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise damaged_group(file, group, error) from error


def types_of(file: ForeignFile, columns: Sequence[str]) -> dict[str, pa.DataType]:
    """The types that `blocks` give those of these columns that a file of Parquet itself has."""
    with input_file(file.path) as source, opened_parquet(source, file) as opened:
        fields = opened.schema_arrow
    found = {}
    for name in columns:
        if name in file.names:
            where = file.nested.get(name, (name,))
            found[name] = type_at(fields.field(file.roots.index(where[0])).type, where)
    return found


class WholeLists(pq.ParquetFile):
    """A Parquet file, including the lists that a table of ours leaves out."""

    def __init__(self, source: pa.NativeFile, path: Location, **options: Any) -> None:
        super().__init__(source, **options)
        self._path = path

    def iter_batches(self, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """The rows of some row groups, each from its first row on."""
        batches = all_batches(
            super().iter_batches(*args, **options),
            self.metadata,
            options.get("row_groups"),
            str(self._path),
        )
        return expanded_batches(batches, lists_left_out(self.metadata, self._path), str(self._path))


def opened_parquet(source: pa.NativeFile, file: ForeignFile) -> WholeLists:
    """A Parquet file whose pages' checksums are verified if it has any; its columns have its
    table's names."""
    names = file.table_names
    footer = None if names is None else footer_in(source, file.path, names).metadata
    return WholeLists(source, file.path, metadata=footer, **OPTIONS)


def damaged_group(file: ForeignFile, group: int, error: Exception) -> DataError:
    """The error for a row group that cannot be read."""
    return DataError(
        f"{file.path}, row group {group}: cannot be read ({error}). It was cut short or damaged: "
        "write it again, or take it out."
    )


def _places_among_same(names: Sequence[str]) -> list[int]:
    """How many columns before each have its name."""
    seen: Counter[str] = Counter()
    places = []
    for name in names:
        places.append(seen[name])
        seen[name] += 1
    return places
