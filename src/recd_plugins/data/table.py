"""A table: a folder of Parquet files with one schema, written and read by stripes.

A stripe is a Parquet row group, the unit of reading. Files are zstd (1 by default) with 1 MiB
pages and no dictionary on lists (measured: dictionaries make list columns 52% larger).
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recd_plugins.data.conform.floats import (
    check_finite,
    check_label,
    check_weight,
    check_whole,
    float_type_problem,
)
from recd_plugins.data.conform.ids import id_error
from recd_plugins.data.conform.rows import check_foreign_columns, conform, source_columns
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.files import arrow_schema, footer_of, opened, table_files
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.schema import METADATA_KEY, Schema
from recd_plugins.errors import DataError, nearest

__all__ = [
    "Progress",
    "Stripe",
    "Table",
    "TableWriter",
    "carries_schema",
    "read_stripe",
    "silent",
    "write_table",
]


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
    """Opened for reading: its schema and stripes, known from the footers alone.

    Whoever reads rows takes them from `read`, or has `conform` make them of what it read: then they
    are rows of the schema, whoever wrote the files.
    """

    path: Path
    schema: Schema
    stripes: tuple[Stripe, ...]
    source: ForeignSchema | None = None
    """What the files' columns are, where somebody else wrote them; none: as the schema says."""

    @property
    def num_rows(self) -> int:
        return sum(stripe.num_rows for stripe in self.stripes)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(stripe.file for stripe in self.stripes))

    @classmethod
    def open(
        cls, path: Path | Sequence[Path], schema: Schema | ForeignSchema | None = None
    ) -> Table:
        """Read the footers of folders, files or globs and check them against the schema.

        Without `schema` the one in the first file's footer counts. Checked are: that each
        file is whole, has every column in a type that fits, and that the ids which its
        statistics name lie in their feature's range.
        """
        files = table_files(path)
        first = path if isinstance(path, Path) else path[0]
        if isinstance(schema, ForeignSchema) and schema.drops:
            raise DataError(
                f"{first}: its schema drops rows with nulls in {', '.join(schema.drops)}, and how "
                "many are left is known once all are read. `recd data prepare` and `recd train` "
                "write the table without them first; or choose another value for `nulls`."
            )
        stripes: list[Stripe] = []
        for file in files:
            footer = footer_of(file)
            arrow = arrow_schema(footer, file)
            schema = schema or _schema_of(file, footer)
            if isinstance(schema, ForeignSchema):
                check_foreign_columns(arrow, schema, str(file))
            else:
                check_columns(arrow, schema, str(file))
            _check_ids(footer, schema, file)
            stripes += [
                Stripe(file, group, footer.row_group(group).num_rows)
                for group in range(footer.num_row_groups)
            ]
        assert schema is not None  # there is at least one file
        source = schema if isinstance(schema, ForeignSchema) else None
        whole = schema if isinstance(schema, Schema) else schema.conformed
        return cls(first, whole, tuple(stripe for stripe in stripes if stripe.num_rows), source)

    def read(self, stripe: Stripe, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a stripe: all columns of the schema, or some of them."""
        wanted = self.schema.columns if columns is None else tuple(columns)
        with opened(stripe.file) as file:
            chunk = read_stripe(file, stripe, self.file_columns(wanted))
        return self.conform(chunk, str(stripe), wanted)

    def file_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The columns of the files that columns of the schema are made of."""
        return tuple(columns) if self.source is None else source_columns(self.source, columns)

    def conform(
        self,
        chunk: pa.Table,
        where: str,
        columns: Sequence[str] | None = None,
        *,
        first_row: int = 0,
        in_range: Collection[str] = (),
    ) -> pa.Table:
        """Some columns of the schema, of a chunk of a file's rows; see `conform.rows.conform`."""
        wanted = self.schema.columns if columns is None else columns
        if self.source is None:
            return chunk.select(list(wanted))
        made = conform(
            chunk, self.source, where, columns=wanted, first_row=first_row, in_range=in_range
        )
        return made.select(list(wanted))


def read_stripe(
    file: pq.ParquetFile, stripe: Stripe, columns: Sequence[str], *, threads: bool = True
) -> pa.Table:
    """Some columns of a stripe as they lie in its file; `DataError` where they do not decode."""
    try:
        rows = file.read_row_group(stripe.group, columns=list(columns), use_threads=threads)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{stripe}: cannot be read ({error}). The file was damaged or cut short: write "
            "it again, or take it out of the table."
        ) from error
    if rows.num_rows != stripe.num_rows:
        raise DataError(
            f"{stripe}: has {rows.num_rows} rows, but had {stripe.num_rows} when the table "
            "was opened. Do not write to a table while it is read."
        )
    return rows


def carries_schema(path: Path | Sequence[Path]) -> bool:
    """Whether the first file of a table says in its footer what its columns mean."""
    return METADATA_KEY in (footer_of(table_files(path)[0]).metadata or {})


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
        check_columns(chunk.schema, self.schema, where, made=True)
        chunk = chunk.select(self._arrow.names)
        _check_values(chunk, self.schema, where, self.num_rows + self._pending_rows)
        try:
            self._pending.append(chunk.cast(self._arrow, safe=False))
        except pa.ArrowException as error:
            raise DataError(f"{where}: does not fit its schema ({error}).") from error
        self._pending_rows += chunk.num_rows
        while self._pending_rows >= self._rows_per_stripe:
            self._write_stripe(self._rows_per_stripe)

    def close(self) -> None:
        try:
            if self._pending_rows or not self._stripes:
                self._write_stripe(self._pending_rows)
            self._close_file()
        except BaseException:  # the disk is full, say
            self.abort()
            raise
        shutil.rmtree(self.folder, ignore_errors=True)
        self._part.rename(self.folder)

    def abort(self) -> None:
        with suppress(OSError):  # there may be no room for its footer
            self._close_file()
        self._file = None
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


def _schema_of(file: Path, footer: pq.FileMetaData) -> Schema:
    text = (footer.metadata or {}).get(METADATA_KEY)
    if text is None:
        raise DataError(
            f"{file}: carries no {METADATA_KEY.decode()!r} in its footer, so nobody knows what "
            "its columns mean. Give the schema under `dataset.schema` in registry.yaml; "
            "`recd data schema` suggests one."
        )
    return Schema.from_json(text, str(file))


def check_columns(arrow: pa.Schema, schema: Schema, where: str, *, made: bool = False) -> None:
    """Every column of `schema` is in `arrow`, in a type that fits; or `DataError`. Of columns that
    are just `made` floats will do for integers, as far as they are whole."""
    for name in schema.columns:
        if name not in arrow.names:
            raise DataError(
                f"{where}: lacks column {name!r}, which the schema names; "
                f"{nearest(name, arrow.names)}"
            )
    for name in (*schema.sparse_names, *schema.weights_names):
        kind = arrow.field(name).type
        number = pa.types.is_integer if name in schema.sparse_names else pa.types.is_floating
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not (lists and number(kind.value_type)):
            what = "integers" if name in schema.sparse_names else "floats"
            raise DataError(f"{where}: column {name!r} is {kind}, but must be a list of {what}.")
    for name in schema.key_columns:
        kind = arrow.field(name).type
        # Texts are refused where somebody asks for them: training by itself does not.
        odd = not (pa.types.is_integer(kind) or pa.types.is_floating(kind))
        if odd if made else pa.types.is_floating(kind):
            raise DataError(
                f"{where}: column {name!r} is {kind}, but must be integers: of a time those in ms. "
                "Write the table again with such; what is somebody else's file gets a "
                "`dataset.schema`, which reads any type."
            )
    for name in schema.float_columns:
        if problem := float_type_problem(arrow.field(name).type, schema.width(name)):
            raise Spot(where, name).error(*problem)


def _check_values(chunk: pa.Table, schema: Schema, where: str, first_row: int) -> None:
    """`DataError` for values that rows of the schema do not have; rows are counted as the table
    will have them."""
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
                f"{where}: column {name!r} holds {count} nulls. Give them a value; a missing "
                "list of ids is an empty one."
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
        check_whole(chunk[name], Spot(where, name, chunk=first_row))


def id_ranges(footer: pq.FileMetaData, group: int) -> dict[str, tuple[int, int]]:
    """The lowest and the highest of each column of integers whose statistics hold them."""
    columns = footer.row_group(group)
    ranges = {}
    for index in range(columns.num_columns):
        described, column = footer.schema.column(index), columns.column(index)
        # Statistics of dates and times are no integers.
        if described.physical_type not in INTEGERS or described.logical_type.type not in PLAIN:
            continue
        stats = column.statistics
        if stats is not None and stats.has_min_max:
            name = column.path_in_schema
            if described.max_repetition_level:
                name = name.rsplit(".", 2)[0]  # of name.list.element
            ranges[name] = (stats.min, stats.max)
    return ranges


INTEGERS = frozenset({"INT32", "INT64"})
PLAIN = frozenset({"NONE", "INT"})


def _check_ids(footer: pq.FileMetaData, schema: Schema | ForeignSchema, file: Path) -> None:
    for group in range(footer.num_row_groups):
        ranges = id_ranges(footer, group)
        for feature in schema.sparse:
            if isinstance(feature, ForeignFeature) and (feature.scored or feature.ids != "as_is"):
                continue  # other values than ids, or those of weights beside them
            low, high = ranges.get(feature.name, (0, 0))
            worst = low if low < 0 else high
            if not 0 <= worst < feature.num_ids:
                raise id_error(Stripe(file, group, 0), feature.name, worst, feature.num_ids)
