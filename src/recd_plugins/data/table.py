"""A table: a folder of Parquet files with one schema, opened and read by stripes.

A stripe is a Parquet row group, the unit of reading.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.data.absent import AbsentColumns, with_absent
from recd_plugins.data.conform.floats import (
    float_type_problem,
)
from recd_plugins.data.conform.ids import id_error
from recd_plugins.data.conform.rows import check_foreign_columns, conform, source_columns
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import without_views
from recd_plugins.data.files.footers import footers_of
from recd_plugins.data.files.found import found_files, table_files
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.kept_stripes import KeptStripes
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.parquet.footer import Footer, arrow_schema, footer_of
from recd_plugins.data.parquet.left_out import expanded
from recd_plugins.data.parquet.opened_file import OpenedFile, opened
from recd_plugins.data.schema import IDS, METADATA_KEY, NARROW_IDS, Schema
from recd_plugins.data.selection import Selection, kept_rows
from recd_plugins.data.side_table import PAIRS, SideTable
from recd_plugins.data.stripes import Stripe, read_stripe
from recd_plugins.errors import DataError, listed, nearest, so_many
from recd_plugins.notices import NoticeWarning
from recd_plugins.patterns import matching
from recd_plugins.storage.uri import Location, Uri, location_of

__all__ = [
    "Table",
    "carries_schema",
    "check_columns",
    "footer_schema",
    "id_ranges",
]


@dataclass(frozen=True)
class Table:
    """A table opened for reading: its schema and stripes are known from the footers only.

    `read` returns rows of the schema, whichever program wrote the files; `conform` makes such rows
    of columns that were read from a file.
    """

    paths: tuple[Location, ...]
    """The folders, files and globs that it was opened with."""
    schema: Schema
    stripes: tuple[Stripe, ...]
    source: ForeignSchema | None = None
    """The columns of the files if they are foreign; None if they are as the schema says."""
    selection: Selection | None = None
    """Which rows of the files the table has, if not all; stripes count only these."""
    absent: Mapping[str, pa.DataType] = field(default_factory=dict, hash=False)
    """Columns that some of the files lack, and their types in other files."""
    facts: Mapping[Location, FileFacts] = field(default_factory=dict, repr=False, hash=False)
    """The facts of each file as they were when the table was opened."""
    snapshot: str | None = None
    """Which version of a Delta Lake table, or snapshot of an Iceberg table, this is."""
    joins: tuple[SideTable, ...] = ()
    """Side tables, which have some of its features by a key."""
    vocabularies: Mapping[Location, str] = field(default_factory=dict, repr=False, hash=False)
    """The files in which its ids are looked up, each with a digest of what was in it when the table
    was opened."""

    @property
    def path(self) -> Location:
        """What messages call the table."""
        return self.paths[0]

    @property
    def joined_columns(self) -> tuple[str, ...]:
        """The columns that are not in its files but in those of side tables."""
        return tuple(name for side in self.joins for name in side.columns)

    @property
    def batch_columns(self) -> tuple[str, ...]:
        """The columns of its files that batches are made from."""
        schema, joined = self.schema, self.joined_columns
        names = (*schema.float_columns, *schema.sparse_names, *schema.weights_names)
        return self.file_columns([name for name in names if name not in joined])

    @property
    def num_rows(self) -> int:
        return sum(stripe.num_rows for stripe in self.stripes)

    @property
    def files(self) -> tuple[Location, ...]:
        return tuple(dict.fromkeys(stripe.file for stripe in self.stripes))

    @classmethod
    def open(
        cls,
        path: str | Location | Sequence[str | Location],
        schema: Schema | ForeignSchema | None = None,
        *,
        absent: Sequence[str] = (),
        cache: Path | None = None,
    ) -> Table:
        """Read the footers of folders, files or globs and check them against the schema.

        Without `schema`, the one in the first file's footer is used. This checks that each file is
        whole and has every column in a type that fits, and that the ids in its statistics lie in
        their feature's range. Some files may lack the columns that `absent` has by name or glob.
        `cache` is a folder that keeps footers.
        """
        given = (path,) if isinstance(path, str | Path | Uri) else path
        paths = [location_of(one) for one in given]
        return cls.of(paths, found_files(paths), schema, absent=absent, cache=cache)

    @classmethod
    def of(
        cls,
        path: Location | Sequence[Location],
        files: Mapping[Location, FileFacts],
        schema: Schema | ForeignSchema | None = None,
        *,
        absent: Sequence[str] = (),
        cache: Path | None = None,
        joins: Sequence[SideTable] = (),
    ) -> Table:
        """`open`, for files that are already found. The features of side tables are in its
        schema."""
        paths = (path,) if isinstance(path, Path | Uri) else tuple(path)
        first = paths[0]
        if isinstance(schema, ForeignSchema) and schema.drops:
            raise DataError(
                f"{first}: its schema drops rows with nulls in {', '.join(schema.drops)}, and how "
                "many rows are left is known only after all are read. `recd data prepare` and "
                "`recd train` write the table without them first; or choose another value for "
                "`nulls`."
            )
        stripes: list[Stripe] = []
        columns = AbsentColumns(absent)
        facts: dict[Location, FileFacts] = {}
        for file, known, (footer, *_) in footers_of(files, cache):
            arrow = arrow_schema(footer, file)
            facts[file] = known.beside(arrow.names)
            if facts[file].partitions or known.columns is not None:
                arrow = arrow_schema(footer, file, facts[file])
            if not stripes and isinstance(schema, ForeignSchema):
                _check_is_foreign(schema, file, footer)
            schema = schema or _schema_of(file, footer)
            for side in joins:
                side.check(arrow, footer, file)
            arrow = with_side_tables(arrow, schema, joins)
            arrow = columns.completed(arrow, schema)
            if isinstance(schema, ForeignSchema):
                check_foreign_columns(arrow, schema, str(file))
            else:
                check_columns(arrow, schema, str(file))
            _check_ids(footer, schema, file)
            stripes += [
                Stripe(file, group, footer.row_group(group).num_rows)
                for group in range(footer.num_row_groups)
            ]
        assert schema is not None  # there is always at least one file
        source = schema if isinstance(schema, ForeignSchema) else None
        whole = schema if isinstance(schema, Schema) else schema.conformed
        columns.check(first)
        held = tuple(stripe for stripe in stripes if stripe.num_rows)
        return cls(
            paths,
            whole,
            held,
            source,
            absent=columns.types,
            facts=facts,
            joins=tuple(joins),
            vocabularies=_digests(source, joins),
        )

    def opened(self, file: Location, *, buffer_size: int = 0) -> OpenedFile:
        """A file of the table; raises `DataError` if it has changed since the table was opened."""
        return opened(file, self.facts.get(file), buffer_size=buffer_size)

    def read(self, stripe: Stripe, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a stripe: all columns of the schema, or some of them."""
        with self.opened(stripe.file) as file:
            return self._read(file, stripe, columns)

    def each_opened(self) -> Iterator[tuple[OpenedFile, Stripe]]:
        """Each stripe with its file, which is opened once for all of its stripes, since parsing a
        footer takes as long as it has stripes."""
        for location, stripes in groupby(self.stripes, key=lambda one: one.file):
            with self.opened(location) as file:
                for stripe in stripes:
                    yield file, stripe

    def each_read(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of each stripe: what `read` returns, with each file opened once."""
        for file, stripe in self.each_opened():
            yield self._read(file, stripe, columns)

    def _read(
        self, file: OpenedFile, stripe: Stripe, columns: Sequence[str] | None = None
    ) -> pa.Table:
        wanted = self.schema.columns if columns is None else tuple(columns)
        chunk = self.stored(file, stripe, self.file_columns(wanted))
        return _wide(self.conform(chunk, str(stripe), wanted))

    def stored(
        self,
        file: OpenedFile,
        stripe: Stripe,
        columns: Sequence[str],
        *,
        threads: bool = True,
        kept: KeptStripes | None = None,
        expand: bool = True,
    ) -> pa.Table:
        """Columns of the files, with those rows of a stripe that the table has; only those that are
        not `kept` are read. Without `expand`, columns that leave out lists come as dictionaries."""
        read = read_stripe if kept is None else kept.read
        asked = self.asked(file, stripe, columns)
        rows = read(file, stripe, asked, threads=threads, expand=expand)
        found = self.taken(rows, stripe, columns)
        if found.num_rows != stripe.num_rows:
            raise DataError(
                f"{stripe}: {found.num_rows} of its rows are selected, but there were "
                f"{stripe.num_rows} when they were counted. Do not write to a table while it is "
                "read."
            )
        return found

    def asked(
        self, file: pq.ParquetFile, stripe: Stripe, columns: Sequence[str]
    ) -> tuple[str, ...]:
        """The columns of a file that are read for these: also those that select rows and the keys
        of side tables, but none that the file lacks."""
        selects = self.selection is not None and stripe.stored is not None
        more = self.selection.columns if self.selection is not None and selects else ()
        lacked = {*self.absent} - {*file.schema_arrow.names} if self.absent else {*()}
        lacked |= {*self.joined_columns}
        wanted = (*columns, *(side.key for side in self._joined_for(columns)), *more)
        return tuple(dict.fromkeys(one for one in wanted if one not in lacked))

    def taken(self, rows: pa.Table, stripe: Stripe, columns: Sequence[str]) -> pa.Table:
        """Those of a stripe's rows in the file that the table has."""
        if self.absent:
            lacked = [one for one in columns if one not in self.joined_columns]
            rows = with_absent(rows, lacked, self.absent, empty=self.source is None)
        joins = self._joined_for(columns)
        if self.selection is not None and stripe.stored is not None:
            mask = self.selection.mask(expanded(rows, self.selection.columns), str(stripe))
            kept = (*columns, *(side.key for side in joins))
            kept = tuple(dict.fromkeys(one for one in kept if one not in self.joined_columns))
            rows = without_views(rows.select(list(kept))).filter(pa.array(mask))
        for side in joins:
            rows = side.joined(rows, paired=self.source is not None)
        return rows.select(list(columns)) if joins else rows

    def _joined_for(self, columns: Sequence[str]) -> tuple[SideTable, ...]:
        return tuple(side for side in self.joins if {*side.columns} & {*columns})

    def select(self, selection: Selection, cache: Path | None = None) -> Table:
        """The table with only some rows. How many each stripe has is counted at once, unless the
        folder `cache` has the numbers from before."""
        stripes = kept_rows(self.stripes, selection, cache, self.facts)
        if not stripes and self.stripes:
            share = f"sessions_share {selection.sessions_share}"
            asked = [f"{selection.where_option} `{selection.where}`"] * (
                selection.where is not None
            )
            asked += [share] * (selection.sessions_share < 1)
            raise DataError(
                f"{self.path}: none of its {so_many(self.num_rows, 'row')} is left by "
                f"{' and '.join(asked)}. Change these options (dataset.where_test is for the test "
                "split only), or name another table."
            )
        return dataclasses.replace(self, stripes=stripes, selection=selection)

    def having(self, names: Collection[str]) -> Table:
        """The table with only these of its features and dense columns."""
        return dataclasses.replace(
            self,
            schema=self.schema.having(names),
            source=None if self.source is None else self.source.having(names),
            joins=tuple(side.having(names) for side in self.joins if {*side.features} & {*names}),
        )

    def file_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The columns of the files from which columns of the schema are made."""
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
        """Some columns of the schema, made from a chunk of a file's rows; see
        `conform.rows.conform`."""
        wanted = self.schema.columns if columns is None else columns
        if self.vocabularies:
            from recd_plugins.data.conform.vocabulary import check_vocabularies  # numba

            check_vocabularies(self.vocabularies)
        if self.source is None:
            return chunk.select(list(wanted))
        made = conform(
            chunk, self.source, where, columns=wanted, first_row=first_row, in_range=in_range
        )
        return made.select(list(wanted))


def _digests(source: ForeignSchema | None, joins: Sequence[SideTable]) -> dict[Location, str]:
    """The vocabularies of a table's columns, including joined ones, each with its digest."""
    found = {} if source is None else source.vocabulary_digests()
    for side in joins:
        found |= side.vocabulary_digests()
    return found


def _wide(rows: pa.Table) -> pa.Table:
    """The rows with ids of 8 bytes, which plugins may rely on."""
    for at, column in enumerate(rows.schema):
        if column.type == NARROW_IDS:
            rows = rows.set_column(at, column.with_type(IDS), rows.column(at).cast(IDS))
    return rows


def with_side_tables(
    arrow: pa.Schema, schema: Schema | ForeignSchema, joins: Sequence[SideTable]
) -> pa.Schema:
    """A file's columns, including joined ones."""
    foreign = isinstance(schema, ForeignSchema)
    whole: Schema = schema.conformed if isinstance(schema, ForeignSchema) else schema
    for side in joins:
        for name in side.features if foreign else side.columns:
            paired = foreign and name in whole.sparse_names and whole.feature(name).scored
            arrow = arrow.append(pa.field(name, PAIRS) if paired else whole.arrow().field(name))
    return arrow


def footer_schema(files: Sequence[Location], absent: Sequence[str]) -> Schema:
    """The schema in the first file's footer, with those features and dense columns that only later
    files have and that `absent` has by name or glob."""
    first, *later = files
    schema = _schema_of(first, footer_of(first))
    for file in later if absent else ():
        footer = footer_of(file)
        if METADATA_KEY not in (footer.metadata or {}):
            continue
        other = _schema_of(file, footer)
        new = [one for one in matching(absent, other.dense) if one not in schema.columns]
        names = matching(absent, other.sparse_names)
        schema = dataclasses.replace(
            schema,
            dense=(*schema.dense, *new),
            vectors=(*schema.vectors, *(one for one in other.vectors if one.name in new)),
        ).add(other.feature(name) for name in names if name not in schema.columns)
    return schema


def _check_is_foreign(schema: ForeignSchema, file: Location, footer: Footer) -> None:
    """Raises `DataError`, or warns, if a foreign schema describes the files that a table was made
    from, not the table: what is already converted would be converted again."""
    if METADATA_KEY not in (footer.metadata or {}):
        return
    own, unit = _schema_of(file, footer), schema.timestamp_unit
    takes = "Take the schema out: the table itself says what its columns are"
    if own.timestamp is not None and own.timestamp == schema.timestamp and unit != "ms":
        raise DataError(
            f"{file}: its times are in ms, as in every table that `recd` writes, but the schema "
            f"expects {unit}. {takes}."
        )
    again = [
        one.name for one in schema.sparse if one.ids != "as_is" and one.name in own.sparse_names
    ]
    if again:
        warnings.warn(
            f"{file}: its ids are already rows of tables, but the schema converts those of "
            f"{listed(again, 6)}. {takes}, unless this is intended.",
            NoticeWarning,
            stacklevel=3,
        )


def carries_schema(path: Location | Sequence[Location]) -> bool:
    """Whether the footer of a table's first file says what its columns mean."""
    return METADATA_KEY in (footer_of(table_files(path)[0]).metadata or {})


def _schema_of(file: Location, footer: pq.FileMetaData) -> Schema:
    text = (footer.metadata or {}).get(METADATA_KEY)
    if text is None:
        raise DataError(
            f"{file}: carries no {METADATA_KEY.decode()!r} in its footer, so nothing says what its "
            "columns mean. Give a schema by --schema, or in registry.yaml under `dataset.schema`; "
            "`recd data schema` suggests one."
        )
    return Schema.from_json(text, str(file))


def check_columns(arrow: pa.Schema, schema: Schema, where: str, *, made: bool = False) -> None:
    """Raises `DataError` unless every column of `schema` is in `arrow`, in a type that fits. In
    columns that are just `made`, floats will do for integers if they are whole."""
    there, sparse = {*arrow.names}, {*schema.sparse_names}
    for name in schema.columns:
        if name not in there:
            raise DataError(
                f"{where}: lacks column {name!r}, which the schema names; "
                f"{nearest(name, arrow.names)}"
            )
        if (times := arrow.names.count(name)) > 1:
            raise DataError(
                f"{where}: has column {name!r} {times} times. Give each column a name of its own "
                "where the table is made."
            )
    for name in (*schema.sparse_names, *schema.weights_names):
        kind = arrow.field(name).type
        number = pa.types.is_integer if name in sparse else pa.types.is_floating
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not (lists and number(kind.value_type)):
            what = "integers" if name in sparse else "floats"
            raise DataError(
                f"{where}: column {name!r} is {kind}, but must be a list of {what}. Write the "
                "table again with these, or give a foreign file a `dataset.schema`, which reads "
                "any type."
            )
    for name in schema.key_columns:
        kind = arrow.field(name).type
        # Texts are refused when someone asks for these columns: training by itself does not.
        odd = not (pa.types.is_integer(kind) or pa.types.is_floating(kind))
        if odd if made else pa.types.is_floating(kind):
            raise DataError(
                f"{where}: column {name!r} is {kind}, but must be integers; times are in ms. Write "
                "the table again with these, or give a foreign file a `dataset.schema`, which "
                "reads any type."
            )
    for name in schema.float_columns:
        if problem := float_type_problem(arrow.field(name).type, schema.width(name)):
            raise Spot(where, name).error(*problem)


def id_ranges(footer: pq.FileMetaData, group: int) -> dict[str, tuple[int, int]]:
    """The lowest and the highest value of each column of integers whose statistics have them."""
    columns = footer.row_group(group)
    ranges, names = {}, Counter[str]()
    for index in range(columns.num_columns):
        described, column = footer.schema.column(index), columns.column(index)
        name = column.path_in_schema
        if described.max_repetition_level:
            name = name.rsplit(".", 2)[0]  # of name.list.element
        names[name] += 1
        if not described.max_repetition_level and described.name != name:
            continue  # of a struct
        # Statistics of dates and times are not integers.
        if described.physical_type not in INTEGERS or described.logical_type.type not in PLAIN:
            continue
        stats = column.statistics
        if stats is not None and stats.has_min_max:
            ranges[name] = (stats.min, stats.max)
    # `a.b` may be a column, or b in a struct a; if there are both, they cannot be told apart.
    return {name: one for name, one in ranges.items() if names[name] == 1}


INTEGERS = frozenset({"INT32", "INT64"})
PLAIN = frozenset({"NONE", "INT"})


def _check_ids(footer: pq.FileMetaData, schema: Schema | ForeignSchema, file: Location) -> None:
    for group in range(footer.num_row_groups):
        ranges = id_ranges(footer, group)
        for feature in schema.sparse:
            if isinstance(feature, ForeignFeature) and (feature.paired or feature.ids != "as_is"):
                continue  # values that are not ids, as those of weights beside them
            marks = feature.missing if isinstance(feature, ForeignFeature) else ()
            for end in ranges.get(feature.name, ()):
                if not 0 <= end < feature.num_ids and end not in marks and str(end) not in marks:
                    raise id_error(Stripe(file, group, 0), feature.name, end, feature.num_ids)
