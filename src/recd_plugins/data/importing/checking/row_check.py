"""Looks at each row of foreign files once, and finds what does not conform to a schema."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.dates import date_digits
from recd_plugins.data.conform.rows import Role, ScoreRole, column_problems, made_by, roles_of
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import is_list
from recd_plugins.data.conform.vocabulary import MANY_UNKNOWN, counted, load_vocabulary
from recd_plugins.data.foreign import DenseColumn, ForeignFeature, ForeignSchema
from recd_plugins.data.importing.checking.alike_files import types_in
from recd_plugins.data.importing.checking.repeated_rows import Prints, RepeatedRows
from recd_plugins.data.importing.checking.table_problems import CheckResult
from recd_plugins.data.importing.column_types import ColumnTypes, Misfit, key_problem, wider
from recd_plugins.data.importing.foreign_file import ForeignFile, num_bytes
from recd_plugins.data.importing.reading import Block, mapped
from recd_plugins.data.progress import Progress
from recd_plugins.data.schema import TOO_LARGE, Label, Nulls
from recd_plugins.errors import DataError, so_many
from recd_plugins.storage.uri import Location

__all__ = ["RowCheck"]

E = TypeVar("E", Label, DenseColumn, ForeignFeature)

EARLIEST = datetime.datetime(1990, 1, 1, tzinfo=datetime.UTC)
AHEAD = datetime.timedelta(days=366)
UNITS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
"""Milliseconds of each."""
COMPARED = 64
"""The rows of two columns of texts or lists that are compared before all of them are."""


class RowCheck:
    """One pass over the files' rows, and everything that is wrong with them."""

    def __init__(
        self,
        found: CheckResult,
        schema: ForeignSchema | None,
        read_as: ColumnTypes,
        absent: Collection[str],
        *,
        tests: bool = False,
    ) -> None:
        """`tests`: whether the rows are a test split."""
        self._tests = tests
        self._absent = absent
        self._found = found
        self._schema = schema
        self._roles = roles_of(_dropping(schema)) if schema else {}
        self._bare = {one.name: one for one in schema.sparse if _is_bare(one)} if schema else {}
        """The features whose vocabularies an import would make."""
        self._read_as = read_as
        self._columns: dict[str, _Column] = {}
        self._repeated: RepeatedRows | None = None
        self._misfits: set[str] = set()
        self._first_equal: dict[str, str] | None = None
        self._wrong: set[str] = set()
        """The columns of the files in which no row can conform: they are missing, or have a wrong
        type."""

    def check_types(self, file: ForeignFile, files: Sequence[ForeignFile]) -> None:
        if self._schema is None:
            return
        if file.format == "jsonl":
            known = self._read_as
            for name in self._schema.columns if known.types else ():
                problem = key_problem(name, known)
                if problem is not None and name not in self._wrong:
                    self._found.add(file.path, name, *problem)
                    self._wrong.add(name)
            return
        kinds = types_in(file) if file.format == "parquet" else self._read_as.types
        typed = bool(kinds)  # or else a line of text cannot be read, which is an error of its own
        lacked = [name for name in self._absent if name not in file.columns]
        arrow = pa.schema(
            [(name, kinds.get(name, pa.string())) for name in file.columns]
            + [(name, self._read_as.types.get(name, pa.null())) for name in lacked]
        )
        for name, what, cure in column_problems(arrow, self._schema):
            if name not in self._wrong:
                if name not in file.columns and any(name in one.columns for one in files):
                    cure = (
                        "Other files have it: if it was added later or removed, `absent` of the "
                        f"dataset, or `--absent {name}`, takes nulls for it."
                    )
                elif name not in file.columns and name in self._schema.conformed.label_names:
                    cure += (
                        " Or, if each row is a click, `recd data import --negatives 4` makes it."
                    )
                if typed or name not in file.columns:
                    self._found.add(file.path, name, what, cure)
            self._wrong.add(name)

    def columns(self, files: Sequence[ForeignFile]) -> list[str]:
        """The columns to read."""
        if self._schema is None:
            lines = files[0].format == "jsonl"
            return list(self._read_as.types if lines else files[0].columns)
        return [name for name in self._schema.columns if name not in self._wrong]

    def read(
        self, files: Sequence[ForeignFile], columns: Sequence[str], progress: Progress
    ) -> None:
        """Look at all rows of the files; if one file cannot be read, the others still are."""
        total, before = num_bytes(files), 0
        self._repeated = RepeatedRows(len(columns))
        for file in files:

            def shown(what: str, done: int, of: int | None, before: int = before) -> None:
                progress(what, before + done, total)

            try:
                looks = mapped(
                    self._look_at,
                    [file],
                    columns,
                    progress=shown,
                    what="checking rows",
                    absent=self._absent,
                )
                for _, look in looks:
                    self._add(look)
            except DataError as error:
                self._found.add_error(error)
            before += num_bytes([file])

    def _look_at(self, block: Block) -> _Look:
        """Look at a block, in any thread."""
        names = self.columns([block.file])
        read_as, misfits = self._read_as, list[Misfit]()
        while True:
            try:
                rows = block.rows(names, read_as)
                break
            except Misfit as error:
                name, kind = error.column, None
                if self._schema is not None:
                    kind = wider(read_as, error, self._schema.hashed, block.file)
                if kind is None:
                    if name in {one.column for one in misfits}:
                        raise
                    misfits.append(error)
                    kind = pa.list_(pa.string()) if name in read_as.parted else pa.string()
                read_as = read_as.having(name, kind)
        skip = {one.column for one in misfits}
        columns = {} if self._schema is None else self._look_at_columns(rows, block, skip)
        assert self._repeated is not None
        prints = self._repeated.drawn(rows, self._differing(names))
        return _Look(rows.num_rows, columns, misfits, _first_equal(rows, names), prints)

    def _differing(self, names: Sequence[str]) -> list[str]:
        """The columns, those first by which rows differ most."""
        if self._schema is None:
            return list(names)
        most = (self._schema.timestamp, *self._schema.session_columns)
        return sorted(names, key=lambda name: name not in most)

    def _look_at_columns(self, rows: pa.Table, block: Block, skip: set[str]) -> dict[str, _Column]:
        assert self._schema is not None
        found = {}
        for name, role in _checked_roles(self._schema).items():
            if self._wrong & set(role.sources) or skip & set(role.sources):
                continue
            one = found[name] = _Column()
            for source, nulls in zip(role.sources, role.nulls, strict=True):
                parts = [np.zeros(0, np.bool_)]
                parts += [role.missing(chunk, source) for chunk in rows[source].chunks]
                missing = np.concatenate(parts)
                if nulls == "error" and source not in self._schema.drops and missing.any():
                    row = block.first + int(missing.argmax())
                    one.nulls[source] = (int(missing.sum()), f"{block.file.path}, row {row:,}")
            try:
                by = self._roles[name]
                own = rows.select(list(dict.fromkeys(by.sources)))
                path = str(block.file.path)
                made = made_by({name: by}, own, path, first_row=block.first)[name]
                if name in self._bare and block.file.format == "parquet":  # which may have bytes
                    spot = Spot(str(block.file.path), name)
                    counted(rows[name].chunks, spot, self._bare[name].missing)
            except DataError as error:
                one.error, one.errors = str(error), 1
                continue
            self._measure(name, made, one)
        return found

    def _measure(self, name: str, made: pa.ChunkedArray, one: _Column) -> None:
        assert self._schema is not None
        whole = self._schema.conformed
        if name in (whole.timestamp, whole.sample_weight, *whole.label_names, *whole.dense):
            flat = pc.list_flatten(made) if is_list(made.type) else made
            bounds = pc.min_max(flat).as_py()
            if bounds["min"] is not None:
                one.low, one.high = bounds["min"], bounds["max"]
        feature = next((each for each in self._schema.sparse if each.name == name), None)
        if feature is not None and feature.vocabulary is not None:
            ids = pc.list_flatten(made).to_numpy()
            one.values = ids.size
            one.unknown = int((ids < load_vocabulary(feature.vocabulary).others).sum())

    def _add(self, look: _Look) -> None:
        self._found.rows += look.rows
        if self._repeated is not None:
            self._repeated.add(look.prints)
        for name, one in look.columns.items():
            self._columns.setdefault(name, _Column()).merge(one)
        before = look.first_equal if self._first_equal is None else self._first_equal
        firsts: dict[tuple[str, str], str] = {}
        self._first_equal = {
            name: firsts.setdefault((before[name], first), name)
            for name, first in look.first_equal.items()
            if name in before
        }
        for misfit in look.misfits:
            if misfit.column not in self._misfits:
                self._misfits.add(misfit.column)
                self._found.add_error(misfit)

    def conclude(self, where: Location) -> None:
        """The findings of all of the rows together."""
        if not self._found.rows and not self._found.problems:
            self._found.add(where, None, "holds no rows", "Take it out, or write it again.")
        for name, one in self._columns.items():
            self._conclude_column(name, one, where)
        if self._repeated is not None:
            self._conclude_repeated(self._repeated, where)
        firsts = self._first_equal or {}
        for name, first in firsts.items() if self._found.rows > 1 else ():
            if name != first:
                self._found.add(
                    where,
                    name,
                    f"equals column {first!r} in every row",
                    "One of them adds nothing: take it out of the schema.",
                )

    def _conclude_repeated(self, rows: RepeatedRows, where: Location) -> None:
        self._found.repeated = rows.share()
        if (times := rows.times()) > 1:
            self._found.add(
                where,
                None,
                f"each row is there {times} times, in this file or in all of them together",
                "Take out what was written more than once.",
            )

    def _conclude_column(self, name: str, one: _Column, where: Location) -> None:
        assert self._schema is not None
        whole = self._schema.conformed
        for source, (nulls, first) in one.nulls.items():
            share = f"{nulls:,} of {so_many(self._found.rows, 'row')}"
            cure = (
                f"`nulls: {{{source}: {{value: 0}}}}` or `nulls: {{{source}: drop}}` in the schema."
                if name in (whole.session_id, whole.timestamp)
                else "`nulls: {value: 0}` or `nulls: drop` in its entry of the schema, or `nulls: "
                f"{{{source}: drop}}` beside a plain one."
            )
            self._found.add(
                first,
                source,
                f"is null, or not a finite number, in {share}",
                f"Give a value for it: {cure}",
            )
        if one.error:
            place, _, what = one.error.partition(": ")
            more = f" (and in {one.errors - 1:,} other blocks)" if one.errors > 1 else ""
            self._found.add(place, None, what.removesuffix("."), more.strip())
        if name == whole.timestamp and one.low <= one.high:
            self._check_times(name, one, where)
        if name in whole.label_names and one.low == one.high:
            self._found.add(
                where,
                name,
                f"is {one.low:g} in every row",
                "Its AUC and NE cannot be computed of such test rows: take others, as by another "
                "`--test-share` of `recd data import`, or `--split-by hash:COLUMN`."
                if self._tests
                else "There is nothing to learn from it: name another label; for data of clicks "
                "alone `recd data import --negatives` makes the other class.",
            )
        largest = max(-one.low, one.high)
        if name != whole.timestamp and largest > TOO_LARGE:
            self._found.add(
                where,
                name,
                f"holds up to {largest:.3g}, of which a model soon makes a loss that is not finite",
                "Give it `scale: log` in its entry of the schema, or leave it out."
                if name in whole.dense
                else "Scale it where the table is made.",
            )
        if one.values and one.unknown > MANY_UNKNOWN * one.values:
            self._found.add(
                where,
                name,
                f"has {one.unknown / one.values:.0%} values that its vocabulary does not know",
                "It may be of other data, or of texts in place of integers. Let `recd data import` "
                "make one.",
            )

    def _check_times(self, name: str, one: _Column, where: Location) -> None:
        assert self._schema is not None
        latest = (datetime.datetime.now(datetime.UTC) + AHEAD).timestamp() * 1e3
        earliest = EARLIEST.timestamp() * 1e3
        if earliest <= one.low and one.high <= latest:
            return
        stated = UNITS.get(self._schema.timestamp_unit)
        fits = [
            unit
            for unit, ms in UNITS.items()
            if stated and earliest <= one.low / stated * ms and one.high / stated * ms <= latest
        ]
        if stated and not fits:
            ends = pa.array([round(one.low / stated), round(one.high / stated)])
            fits = [unit] if (unit := date_digits(ends)) else []
        cure = (
            f"In {fits[0]} they are of our time: write `timestamp_unit: {fits[0]}`."
            if fits
            else "Correct the rows, or leave them out, if their time matters."
        )
        self._found.add(
            where, name, f"holds times from {_shown(one.low)} to {_shown(one.high)}", cure
        )


@dataclass
class _Look:
    """One block, as it was seen."""

    rows: int
    columns: dict[str, _Column]
    """Each column, as seen in this block alone."""
    misfits: list[Misfit]
    first_equal: dict[str, str]
    """By column, the first one that equals it in all of its rows, which may be itself."""
    prints: Prints


@dataclass
class _Column:
    """A column, as seen in one block or in several that were merged."""

    nulls: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The nulls in each column that it is made of, and the place of the first."""
    error: str = ""
    """The first value that does not conform, as `conform` reports it."""
    errors: int = 0
    """Blocks that have one."""
    low: float = np.inf
    high: float = -np.inf
    values: int = 0
    unknown: int = 0
    """Values outside of the vocabulary."""

    def merge(self, other: _Column) -> None:
        for source, (nulls, first) in other.nulls.items():
            before, earlier = self.nulls.get(source, (0, first))
            self.nulls[source] = (before + nulls, earlier)
        self.error = self.error or other.error
        self.errors += other.errors
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.values += other.values
        self.unknown += other.unknown


def _checked_roles(schema: ForeignSchema) -> dict[str, Role]:
    """The columns that are looked at; the weights of scored ids come with the ids."""
    roles = roles_of(schema)
    return {name: role for name, role in roles.items() if not isinstance(role, ScoreRole)}


def _dropping(schema: ForeignSchema) -> ForeignSchema:
    """The same schema, but rows are left out where a null would be an error: nulls are counted
    separately."""
    mended: dict[str, Nulls] = {
        name: "drop"
        for role in _checked_roles(schema).values()
        for name, nulls in zip(role.sources, role.nulls, strict=True)
        if nulls == "error"
    }
    entries = {
        one.name
        for one in (*schema.labels, *schema.dense, *schema.sparse)
        if not isinstance(one, str)
    }

    def entry(one: E) -> E:
        return dataclasses.replace(one, nulls="drop") if one.name in mended else one

    def feature(one: ForeignFeature) -> ForeignFeature:
        """An import would make the missing vocabulary, from any values."""
        return entry(dataclasses.replace(one, ids="hash") if _is_bare(one) else one)

    return dataclasses.replace(
        schema,
        labels=tuple(map(entry, schema.labels)),
        dense=tuple(one if isinstance(one, str) else entry(one) for one in schema.dense),
        sparse=tuple(map(feature, schema.sparse)),
        nulls={
            **schema.nulls,
            **{n: w for n, w in mended.items() if n not in entries or n in schema.keys},
        },
    )


def _is_bare(feature: ForeignFeature) -> bool:
    """Whether an import would make the feature's vocabulary."""
    return feature.ids == "vocabulary" and feature.vocabulary is None


def _shown(ms: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(ms / 1e3, datetime.UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{ms:g} ms since 1970"


def _first_equal(rows: pa.Table, names: Sequence[str]) -> dict[str, str]:
    """By column, the first one that equals it. Few pairs are compared whole, since a table may have
    thousands of columns."""
    step = max(1, rows.num_rows // COMPARED)
    places = range(0, rows.num_rows, step)
    firsts: dict[str, str] = {}
    alike: dict[tuple[pa.DataType, int, bytes | tuple[int, ...]], list[str]] = {}
    for name in names:
        column = rows[name]
        some: bytes | tuple[int, ...]
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            some = (column.to_numpy() + 0.0).tobytes()
        else:
            some = tuple(hash(column[place]) for place in places)
        others = alike.setdefault((column.type, column.null_count, some), [])
        firsts[name] = next((one for one in others if rows[one].equals(column)), name)
        if firsts[name] == name:
            others.append(name)
    return firsts
