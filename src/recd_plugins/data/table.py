"""A table: a folder of Parquet files with one schema, written and read by stripes.

A stripe is a Parquet row group, the unit of reading. Files are zstd (1 by default) with 1 MiB
pages and no dictionary on lists (measured: dictionaries make list columns 52% larger).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recd_plugins.data.schema import METADATA_KEY, Schema
from recd_plugins.errors import DataError, nearest

__all__ = ["Progress", "Stripe", "Table", "TableWriter", "silent", "write_table"]


class Progress(Protocol):
    """A function that long work calls to report how far it is; the command line draws it."""

    def __call__(self, what: str, done: int, total: int | None) -> None: ...


def silent(what: str, done: int, total: int | None) -> None:
    """The `Progress` of those who do not look."""


class Stripe(NamedTuple):
    """One row group of one file."""

    file: Path
    group: int
    num_rows: int

    def __str__(self) -> str:
        return f"{self.file}, row group {self.group}"


@dataclass(frozen=True)
class Table:
    """Opened for reading: its schema and stripes, known from the footers alone."""

    path: Path
    schema: Schema
    stripes: tuple[Stripe, ...]

    @property
    def num_rows(self) -> int:
        return sum(stripe.num_rows for stripe in self.stripes)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(stripe.file for stripe in self.stripes))

    @classmethod
    def open(cls, path: Path, schema: Schema | None = None) -> Table:
        """Read the footers of a folder (or of one file) and check them against the schema.

        Without `schema` the one in the first file's footer counts. Checked are: that each
        file is whole, has every column in a type that fits, and that the ids which its
        statistics name lie in their feature's range.
        """
        if not path.exists():
            raise DataError(f"{path}: there is no such table. Check the path.")
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not files:
            raise DataError(f"{path}: holds no .parquet file, so it is not a table.")
        stripes: list[Stripe] = []
        for file in files:
            footer = _footer(file)
            schema = schema or _schema_of(file, footer)
            check_columns(footer.schema.to_arrow_schema(), schema, str(file))
            _check_ids(footer, schema, file)
            stripes += [
                Stripe(file, group, footer.row_group(group).num_rows)
                for group in range(footer.num_row_groups)
            ]
        assert schema is not None  # there is at least one file
        return cls(path, schema, tuple(stripe for stripe in stripes if stripe.num_rows))


class TableWriter:
    """Writes chunks of any size as files of even stripes; memory holds one stripe.

    The folder appears, whole, when the writer closes without an error; until then its
    files lie beside it in `<folder>.part`, which an error removes.
    """

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        *,
        rows_per_stripe: int = 16_384,
        stripes_per_file: int = 16,
        compression_level: int = 1,
    ) -> None:
        self.folder = folder
        self.schema = schema
        self.num_rows = 0
        self._arrow = schema.arrow()
        self._rows_per_stripe = rows_per_stripe
        self._stripes_per_file = stripes_per_file
        self._compression_level = compression_level
        self._part = folder.with_name(folder.name + ".part")
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._stripes = 0
        self._file: pq.ParquetWriter | None = None
        shutil.rmtree(self._part, ignore_errors=True)
        self._part.mkdir(parents=True)

    def write(self, chunk: pa.Table) -> None:
        """Add rows; columns that do not fit the schema, nulls and ids out of range raise."""
        where = f"a chunk for {self.folder}"
        check_columns(chunk.schema, self.schema, where)
        chunk = chunk.select(self._arrow.names)
        _check_values(chunk, self.schema, where)
        try:
            self._pending.append(chunk.cast(self._arrow, safe=False))
        except pa.ArrowException as error:
            raise DataError(f"{where}: does not fit its schema ({error}).") from error
        self._pending_rows += chunk.num_rows
        while self._pending_rows >= self._rows_per_stripe:
            self._write_stripe(self._rows_per_stripe)

    def close(self) -> None:
        if self._pending_rows or not self._stripes:
            self._write_stripe(self._pending_rows)
        self._close_file()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._part.rename(self.folder)

    def abort(self) -> None:
        self._close_file()
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
            name = f"part-{self._stripes // self._stripes_per_file:05}.parquet"
            self._file = pq.ParquetWriter(
                self._part / name,
                self._arrow,
                compression="zstd",
                compression_level=self._compression_level,
                use_dictionary=False,
                data_page_size=1 << 20,
                write_statistics=True,
                write_page_checksum=True,
            )
        self._file.write_table(rest.slice(0, rows).combine_chunks(), row_group_size=max(rows, 1))
        self._pending = [rest.slice(rows)]
        self._pending_rows -= rows
        self.num_rows += rows
        self._stripes += 1
        if self._stripes % self._stripes_per_file == 0:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def write_table(
    folder: Path,
    schema: Schema,
    chunks: Iterable[pa.Table],
    *,
    progress: Progress = silent,
    total: int | None = None,
) -> Table:
    """Stream chunks into a new table and open it."""
    with TableWriter(folder, schema) as writer:
        for chunk in _reported(chunks, f"writing {folder.name}", progress, total):
            writer.write(chunk)
    return Table.open(folder)


def _reported(
    chunks: Iterable[pa.Table], what: str, progress: Progress, total: int | None
) -> Iterator[pa.Table]:
    done = 0
    progress(what, done, total)
    for chunk in chunks:
        yield chunk
        done += chunk.num_rows
        progress(what, done, total)
    progress(what, done, done)


def _footer(file: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file}: not a whole Parquet file ({error}). It was cut short or damaged: "
            "write it again, or take it out of the table."
        ) from error


def _schema_of(file: Path, footer: pq.FileMetaData) -> Schema:
    text = (footer.metadata or {}).get(METADATA_KEY)
    if text is None:
        raise DataError(
            f"{file}: carries no {METADATA_KEY.decode()!r} in its footer, so nobody knows what "
            "its columns mean. Give the schema under `dataset.schema` in registry.yaml."
        )
    return Schema.from_json(text, str(file))


def check_columns(arrow: pa.Schema, schema: Schema, where: str) -> None:
    """Every column of `schema` is in `arrow`, in a type that fits; or `DataError`."""
    for name in schema.columns:
        if name not in arrow.names:
            raise DataError(
                f"{where}: lacks column {name!r}, which the schema names; "
                f"{nearest(name, arrow.names)}"
            )
    for name in schema.sparse_names:
        kind = arrow.field(name).type
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not (lists and pa.types.is_integer(kind.value_type)):
            raise DataError(f"{where}: column {name!r} is {kind}, but must be a list of integers.")
    for name in (schema.label, *schema.dense):
        kind = arrow.field(name).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise DataError(f"{where}: column {name!r} is {kind}, but must be a number.")


def _check_values(chunk: pa.Table, schema: Schema, where: str) -> None:
    nulls = {name: chunk[name].null_count for name in chunk.column_names}
    for feature in schema.sparse:
        ids = pc.list_flatten(chunk[feature.name])
        nulls[feature.name] += ids.null_count
        low, high = pc.min_max(ids).as_py().values()
        worst = low if low is not None and low < 0 else high
        if worst is not None and not 0 <= worst < feature.num_ids:
            raise id_error(where, feature.name, worst, feature.num_ids)
    for name, count in nulls.items():
        if count:
            raise DataError(
                f"{where}: column {name!r} holds {count} nulls. Give them a value; a missing "
                "list of ids is an empty one."
            )


def id_ranges(footer: pq.FileMetaData, group: int) -> dict[str, tuple[int, int]]:
    """The lowest and the highest id of each list column whose statistics hold them."""
    columns = footer.row_group(group)
    ranges = {}
    for index in range(columns.num_columns):
        if footer.schema.column(index).max_repetition_level:
            column = columns.column(index)
            stats = column.statistics
            if stats is not None and stats.has_min_max:
                name = column.path_in_schema.rsplit(".", 2)[0]  # of name.list.element
                ranges[name] = (stats.min, stats.max)
    return ranges


def _check_ids(footer: pq.FileMetaData, schema: Schema, file: Path) -> None:
    for group in range(footer.num_row_groups):
        ranges = id_ranges(footer, group)
        for feature in schema.sparse:
            low, high = ranges.get(feature.name, (0, 0))
            worst = low if low < 0 else high
            if not 0 <= worst < feature.num_ids:
                raise id_error(Stripe(file, group, 0), feature.name, worst, feature.num_ids)


def id_error(where: Stripe | str, feature: str, found: int, num_ids: int) -> DataError:
    """The error for an id outside [0, num_ids)."""
    return DataError(
        f"{where}: feature {feature!r} holds id {found}, outside [0, {num_ids}). "
        "Raise its num_ids in the schema, or mend the ids where the table is made."
    )
