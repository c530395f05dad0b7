"""A table that is being written: a folder of Parquet files with one schema and even stripes.

Files are compressed by zstd (level 1 by default), with 1 MiB pages and no dictionary on lists
(measured: dictionaries make list columns 52% larger). Ids take 4 bytes in them if they fit: zstd
would compress the zeros of 8 bytes, but takes twice as long to restore them.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.floats import (
    check_finite,
    check_label,
    check_weight,
    check_whole_numbers,
)
from recd_plugins.data.conform.ids import id_error
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.files.paths import UNFINISHED
from recd_plugins.data.parquet.file_writer import FileWriter
from recd_plugins.data.parquet.left_out import LeavingOut
from recd_plugins.data.progress import Progress, silent
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import Table, check_columns
from recd_plugins.errors import DataError, called, so_many
from recd_plugins.storage.uri import Location, Uri, location_of

__all__ = ["ChunkError", "TableWriter", "write_table"]

FILE_NAME = "part-{:05}.parquet"


class ChunkError(DataError):
    """Rows that code makes for a table do not fit its schema."""


class TableWriter:
    """Writes chunks of any size as files of even stripes; memory holds one stripe.

    The folder appears, whole, when the writer closes without an error; until then its files lie
    beside it in `<folder>.part`, which an error removes. A store cannot rename: there the files lie
    in the folder at once, beside a file that marks it as unfinished, so that readers refuse it. The
    writer removes that file last.
    """

    def __init__(
        self,
        folder: str | Location,
        schema: Schema,
        *,
        rows_per_stripe: int = 16_384,
        stripes_per_file: int = 16,
        compression_level: int = 1,
        leave_out: Collection[str] = (),
    ) -> None:
        """For the features `leave_out`, the files omit each list that equals the previous row's."""
        self.folder = folder = location_of(folder)
        self.schema = schema
        self.num_rows = 0
        self._arrow = schema.in_files()
        self._leave_out = tuple(leave_out)
        self._leaving_out = LeavingOut(())
        self._rows_per_stripe = rows_per_stripe
        self._stripes_per_file = stripes_per_file
        self._compression_level = compression_level
        self._part: Location = folder
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._stripes = 0
        self._file: FileWriter | None = None
        self._may_fill = True
        """Whether nobody has looked yet whether the disk has room for all rows."""
        if isinstance(folder, Uri):
            folder.mkdir(parents=True)
            (folder / UNFINISHED).write_text("")
            _clear(folder)
        else:
            self._part = folder.with_name(folder.name + ".part")
            shutil.rmtree(self._part, ignore_errors=True)
            self._part.mkdir(parents=True)

    def write(self, chunk: pa.Table | pa.RecordBatch) -> None:
        """Add rows; raises for columns that do not fit the schema, nulls, and ids out of range."""
        where = f"a chunk for {self.folder}"
        if isinstance(chunk, pa.RecordBatch):
            chunk = pa.Table.from_batches([chunk])
        if not isinstance(chunk, pa.Table):
            raise ChunkError(
                f"{where} is {called(chunk)}, where it must be a pyarrow.Table or a RecordBatch."
            )
        try:
            check_columns(chunk.schema, self.schema, where, made=True)
            chunk = chunk.select(self._arrow.names)
            _check_values(chunk, self.schema, where, self.num_rows + self._pending_rows)
            self._pending.append(chunk.cast(self._arrow, safe=False))
        except DataError as error:
            raise ChunkError(str(error)) from error
        except pa.ArrowException as error:
            raise ChunkError(
                f"{where}: does not fit its schema ({error}). Correct these rows, or the schema."
            ) from error
        self._pending_rows += chunk.num_rows
        while self._pending_rows >= self._rows_per_stripe:
            self._write_stripe(self._rows_per_stripe)

    def _check_room(self, total: int) -> None:
        """Once the first file is written: `DataError` if `total` rows that take as many bytes as
        its rows need more than twice the room that the disk has. Rows to come may be smaller."""
        if not self._may_fill or self._stripes < self._stripes_per_file:
            return
        self._may_fill = False
        if isinstance(self._part, Path):
            rows = self._rows_per_stripe * self._stripes_per_file
            size = (self._part / FILE_NAME.format(0)).stat().st_size / rows
            needed, free = size * (total - rows), shutil.disk_usage(self._part).free
            if needed > 2 * free:
                raise DataError(
                    f"{self.folder}: {total:,} rows need about {needed / 1e9:,.1f} GB, by the "
                    f"first {rows:,} of them, and {free / 1e9:,.1f} GB are free on this disk. Have "
                    "the dataset make fewer rows, or name a `folder` on a larger disk."
                )

    def close(self) -> None:
        try:
            if self._pending_rows or not self._stripes:
                self._write_stripe(self._pending_rows)
            self._close_file()
        except BaseException:  # as when the disk is full
            self.abort()
            raise
        if isinstance(self.folder, Uri):
            (self.folder / UNFINISHED).unlink()
        elif isinstance(self._part, Path):
            shutil.rmtree(self.folder, ignore_errors=True)
            self._part.rename(self.folder)

    def abort(self) -> None:
        with suppress(OSError, DataError):  # there may be no room for the footer
            self._close_file()
        self._file = None
        if isinstance(self._part, Uri):
            with suppress(DataError):  # else what is left stays marked as unfinished
                _clear(self._part)
                (self._part / UNFINISHED).unlink(missing_ok=True)
        else:
            shutil.rmtree(self._part, ignore_errors=True)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _write_stripe(self, rows: int) -> None:
        rest = pa.concat_tables(self._pending) if self._pending else self._arrow.empty_table()
        if self._file is None:
            name = FILE_NAME.format(self._stripes // self._stripes_per_file)
            self._leaving_out = LeavingOut(self._leave_out)
            self._file = FileWriter(
                self._part / name,
                self._leaving_out.schema(self._arrow),
                compression="zstd",
                compression_level=self._compression_level,
                use_dictionary=False,
                data_page_size=1 << 20,
                write_statistics=True,
                write_page_checksum=True,
            )
        stripe = self._leaving_out.stripe(rest.slice(0, rows).combine_chunks())
        self._file.write_table(stripe, row_group_size=max(rows, 1))
        self._pending = [rest.slice(rows)]
        self._pending_rows -= rows
        self.num_rows += rows
        self._stripes += 1
        if self._stripes % self._stripes_per_file == 0:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.add_key_value_metadata(self._leaving_out.noted())
            self._file.close()
            self._file = None


def _clear(folder: Uri) -> None:
    """Remove a table's files from a folder of a store."""
    for file in folder.glob("*.parquet"):
        file.unlink(missing_ok=True)


def write_table(
    folder: str | Location,
    schema: Schema,
    chunks: Iterable[pa.Table | pa.RecordBatch],
    *,
    progress: Progress = silent,
    total: int | None = None,
) -> Table:
    """Stream chunks into a new table and open it."""
    with TableWriter(folder, schema) as writer:
        for chunk in _reported(chunks, f"writing {writer.folder.name}", progress, total):
            writer.write(chunk)
            if total is not None:
                writer._check_room(total)
    return Table.open(writer.folder)


def _reported(
    chunks: Iterable[pa.Table | pa.RecordBatch], what: str, progress: Progress, total: int | None
) -> Iterator[pa.Table | pa.RecordBatch]:
    done = 0
    progress(what, done, total)
    for chunk in chunks:
        yield chunk
        done += chunk.num_rows
        progress(what, done, total)
    progress(what, done, done)


def _check_values(chunk: pa.Table, schema: Schema, where: str, first_row: int) -> None:
    """Raises `DataError` for values that rows of the schema may not have; rows are counted as in
    the table."""
    nulls = {name: chunk[name].null_count for name in chunk.column_names}
    for name in (*schema.sparse_names, *schema.weights_names):
        nulls[name] += pc.list_flatten(chunk[name]).null_count
    for feature in schema.sparse:
        ids = pc.list_flatten(chunk[feature.name])
        low, high = pc.min_max(ids).as_py().values()
        worst = low if low is not None and low < 0 else high
        if worst is not None and not 0 <= worst < feature.num_ids:
            raise id_error(where, feature.name, worst, feature.num_ids)
    for name, count in nulls.items():
        if count:
            raise DataError(
                f"{where}: column {name!r} holds {so_many(count, 'null')}. Give them a value; a "
                "missing list of ids is an empty one."
            )
    for name in schema.float_columns:
        if name not in schema.without_target:
            check_finite(chunk[name], Spot(where, name, chunk=first_row))
    for label in schema.targets:
        check_label(chunk[label.name], label, Spot(where, label.name, chunk=first_row))
    if schema.sample_weight is not None:
        name = schema.sample_weight
        check_weight(chunk[name], Spot(where, name, chunk=first_row))
    for name in schema.key_columns:
        check_whole_numbers(chunk[name], Spot(where, name, chunk=first_row))
