"""`conform`: a chunk of foreign rows becomes rows of a `Schema`, which all readers take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recd_plugins.data.conform.floats import (
    check_label,
    check_weight,
    float_type_problem,
    floats_of,
    logarithms,
    not_finite_rows,
    vectors_of,
)
from recd_plugins.data.conform.ids import (
    feature_type_problem,
    ids_of,
    missing_rows,
    missing_weights,
    weights_of,
    weights_type_problem,
)
from recd_plugins.data.conform.keys import (
    session_type_problem,
    sessions_of,
    time_type_problem,
    times_of,
)
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import missing, without_views
from recd_plugins.data.foreign import (
    DenseColumn,
    ForeignFeature,
    ForeignSchema,
    null_instead_of,
)
from recd_plugins.data.schema import Label, Nulls
from recd_plugins.errors import nearest

__all__ = [
    "Role",
    "ScoreRole",
    "check_foreign_columns",
    "column_problems",
    "conform",
    "dropping_columns",
    "made_by",
    "only",
    "roles_of",
    "rows_left",
    "source_columns",
]

Mask = npt.NDArray[np.bool_]
Problem = tuple[str, str]
"""What is wrong with a column, and the cure."""


def conform(
    chunk: pa.Table,
    schema: ForeignSchema,
    where: str,
    *,
    columns: Collection[str] | None = None,
    first_row: int = 0,
    in_range: Collection[str] = (),
    dropped: Counter[str] | None = None,
    drops: bool = True,
    left: npt.NDArray[np.int64] | None = None,
) -> pa.Table:
    """The rows of `chunk` as rows of `schema.conformed`, in the same order.

    `where` names the file and row group in errors, and `first_row` is the number of the chunk's
    first row there. `columns` are the conformed columns to make, by default all; the chunk needs
    only the columns that they are made of. The features in `in_range` have ids that are known to be
    in range. Rows with a null in a column with `nulls: drop` are left out; `dropped` counts them by
    column. `left` are the rows to keep, where `rows_left` has found them by more columns than those
    that are made. If every row must stay, `drops` is false, and no error advises to drop rows. A
    column that already conforms is not copied.
    """
    roles = {
        name: role
        for name, role in roles_of(schema, in_range).items()
        if columns is None or name in columns
    }
    return made_by(
        roles, chunk, where, first_row=first_row, dropped=dropped, drops=drops, left=left
    )


def made_by(
    roles: Mapping[str, Role],
    chunk: pa.Table,
    where: str,
    *,
    first_row: int = 0,
    dropped: Counter[str] | None = None,
    drops: bool = True,
    left: npt.NDArray[np.int64] | None = None,
) -> pa.Table:
    """What `conform` returns, by roles that `roles_of` found: for many calls with few of them."""
    for name, what, cure in _problems(chunk.schema, roles):
        raise Spot(where, name).error(what, cure)
    kept = left
    if kept is None:
        kept = _kept(chunk, roles, Counter() if dropped is None else dropped)
    chunk = only(chunk, kept)
    found = {}
    for name, role in roles.items():
        spots = [
            Spot(where, source, chunk=first_row, kept=kept, drops=drops) for source in role.sources
        ]
        found[name] = role.made([chunk[source] for source in role.sources], spots)
    fields = [pa.field(name, column.type, nullable=False) for name, column in found.items()]
    return pa.table(list(found.values()), schema=pa.schema(fields))


def rows_left(chunk: pa.Table, schema: ForeignSchema) -> npt.NDArray[np.int64] | None:
    """The rows of `chunk` that `conform` keeps, by the columns that are there; None if all."""
    there = {*chunk.column_names}
    roles = {name: one for name, one in roles_of(schema).items() if there.issuperset(one.sources)}
    return _kept(chunk, roles, Counter())


def only(rows: pa.Table, left: npt.NDArray[np.int64] | None) -> pa.Table:
    """The rows that `rows_left` found."""
    return rows if left is None else without_views(rows).take(pa.array(left))


def dropping_columns(schema: ForeignSchema) -> tuple[str, ...]:
    """The columns of the files in which a null leaves out the row, each once."""
    found = (
        source
        for role in roles_of(schema).values()
        for nulls in role.nulls
        if nulls == "drop"
        for source in role.sources
    )
    return tuple(dict.fromkeys(found))


def source_columns(schema: ForeignSchema, columns: Collection[str]) -> tuple[str, ...]:
    """The columns of the files from which the given conformed columns are made, each once."""
    roles = roles_of(schema)
    return tuple(dict.fromkeys(source for name in columns for source in roles[name].sources))


def check_foreign_columns(
    arrow: pa.Schema, schema: ForeignSchema, where: str, columns: Collection[str] | None = None
) -> None:
    """Raise `DataError` unless `arrow` has each column of `schema` once, in a type that fits."""
    for name, what, cure in column_problems(arrow, schema, columns):
        raise Spot(where, name).error(what, cure)


def column_problems(
    arrow: pa.Schema, schema: ForeignSchema, columns: Collection[str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Each column of the files that does not fit the schema, what is wrong, and the cure.

    `columns` are the conformed columns that are wanted, by default all.
    """
    roles = roles_of(schema)
    wanted = roles if columns is None else {name: roles[name] for name in roles if name in columns}
    yield from _problems(arrow, wanted)


def _problems(arrow: pa.Schema, roles: Mapping[str, Role]) -> Iterator[tuple[str, str, str]]:
    names = Counter(arrow.names)
    for role in roles.values():
        for source in role.sources:
            count = names[source]
            if count == 0:
                root = source.split(".")[0]
                default = null_instead_of(source)
                what = "is not there" if default else "is not there, but the schema names it"
                cure = default or nearest(source, names)
                if root != source and root in names and pa.types.is_nested(arrow.field(root).type):
                    cure = "`recd data import` makes columns of the fields of a struct."
                yield source, what, cure
            elif count > 1:
                yield (
                    source,
                    f"is there {count} times",
                    "Give each column a name of its own where the table is made.",
                )
            elif problem := role.type_problem(arrow.field(source).type, source):
                yield (source, *problem)


@dataclass(frozen=True)
class Role(ABC):
    """The role of some columns of the files: they become one conformed column."""

    sources: tuple[str, ...]
    nulls: tuple[Nulls, ...]
    """The nulls, by source."""

    @abstractmethod
    def type_problem(self, kind: pa.DataType, source: str) -> Problem | None:
        """What is wrong with a source of this type, and the cure; or None."""

    def missing(self, array: pa.Array, source: str) -> Mask:
        """[N] which rows of a source have a null, or something that counts as one."""
        return missing(array)

    @abstractmethod
    def array(self, arrays: Sequence[pa.Array], spots: Sequence[Spot]) -> pa.Array:
        """The conformed rows of a stretch of the sources."""

    def made(self, columns: list[pa.ChunkedArray], spots: list[Spot]) -> pa.ChunkedArray:
        """The conformed column, made of the whole columns of the sources."""
        if len(columns) > 1:  # their chunks may differ in length
            columns = [pa.chunked_array([one.combine_chunks()]) for one in columns]
        parts, first = [], 0
        for chunks in zip(
            *(one.chunks or [pa.array([], one.type)] for one in columns), strict=True
        ):
            parts.append(self.array(chunks, [spot._replace(first=first) for spot in spots]))
            first += len(chunks[0])
        return pa.chunked_array(parts)


@dataclass(frozen=True)
class SessionRole(Role):
    def type_problem(self, kind: pa.DataType, source: str) -> Problem | None:
        return session_type_problem(kind)

    def array(self, arrays: Sequence[pa.Array], spots: Sequence[Spot]) -> pa.Array:
        return sessions_of(arrays, self.nulls, spots)


@dataclass(frozen=True)
class TimeRole(Role):
    schema: ForeignSchema

    def type_problem(self, kind: pa.DataType, source: str) -> Problem | None:
        return time_type_problem(kind, self.schema.timestamp_unit)

    def array(self, arrays: Sequence[pa.Array], spots: Sequence[Spot]) -> pa.Array:
        (array,), (spot,) = arrays, spots
        return times_of(array, self.schema.timestamp_unit, self.nulls[0], spot)


@dataclass(frozen=True)
class LabelRole(Role):
    label: Label

    def type_problem(self, kind: pa.DataType, source: str) -> Problem | None:
        problem = float_type_problem(kind, None)
        if problem is None:
            return None
        cure = "Write it as numbers where the table is made, as 1 for yes and 0 for no."
        return problem[0], cure

    def missing(self, array: pa.Array, source: str) -> Mask:
        return not_finite_rows(array, None)

    def array(self, arrays: Sequence[pa.Array], spots: Sequence[Spot]) -> pa.Array:
        (array,), (spot,) = arrays, spots
        found = floats_of(array, self.nulls[0], spot)
        check_label(found, self.label, spot)
        return found


@dataclass(frozen=True)
class WeightRole(Role):
    def type_problem(self, kind: pa.DataType, source: str) -> Problem | None:
        return float_type_problem(kind, None)

    def missing(self, array: pa.Array, source: str) -> Mask:
        return not_finite_rows(array, None)

    def array(self, arrays: Sequence[pa.Array], spots: Sequence[Spot]) -> pa.Array:
        (array,), (spot,) = arrays, spots
        found = floats_of(array, self.nulls[0], spot)
        check_weight(found, spot)
        return found


@dataclass(frozen=True)
class DenseRole(Role):
    column: DenseColumn

    def type_problem(self, kind: pa.DataType, source: str) -> Problem | None:
        return float_type_problem(kind, self.column.width)

    def missing(self, array: pa.Array, source: str) -> Mask:
        return not_finite_rows(array, self.column.width)

    def array(self, arrays: Sequence[pa.Array], spots: Sequence[Spot]) -> pa.Array:
        (array,), (spot,) = arrays, spots
        if self.column.width is None:
            found = floats_of(array, self.nulls[0], spot)
        else:
            found = vectors_of(array, self.column.width, self.nulls[0], spot)
        return logarithms(found) if self.column.scale == "log" else found


@dataclass(frozen=True)
class FeatureRole(Role):
    """Ids; those of a feature whose weights have a column of their own are made of both."""

    feature: ForeignFeature
    in_range: bool

    def type_problem(self, kind: pa.DataType, source: str) -> Problem | None:
        if source == self.feature.weights:
            return weights_type_problem(kind, self.feature)
        return feature_type_problem(kind, self.feature)

    def missing(self, array: pa.Array, source: str) -> Mask:
        if source == self.feature.weights:
            return missing_weights(array)
        return missing_rows(array, self.feature)

    def array(self, arrays: Sequence[pa.Array], spots: Sequence[Spot]) -> pa.Array:
        return ids_of(*arrays, feature=self.feature, spot=spots[0], in_range=self.in_range)


@dataclass(frozen=True)
class ScoreRole(FeatureRole):
    """The weights of a scored feature; its ids are a `FeatureRole` of the same sources."""

    def array(self, arrays: Sequence[pa.Array], spots: Sequence[Spot]) -> pa.Array:
        return weights_of(*arrays, feature=self.feature, spot=spots[0])


def roles_of(schema: ForeignSchema, in_range: Collection[str] = ()) -> Mapping[str, Role]:
    """Each conformed column, in order, and what it is made of."""
    whole = schema.conformed
    roles: dict[str, Role] = {}
    if whole.session_id is not None:
        names = schema.session_columns
        roles[whole.session_id] = SessionRole(names, tuple(map(schema.key_nulls, names)))
    if schema.timestamp is not None and whole.timestamp is not None:
        nulls = (schema.key_nulls(schema.timestamp),)
        roles[whole.timestamp] = TimeRole((schema.timestamp,), nulls, schema)
    for label in schema.label_columns:
        roles[label.name] = LabelRole((label.name,), (label.nulls,), label)
    if schema.sample_weight is not None:
        name = schema.sample_weight
        roles[name] = WeightRole((name,), (schema.nulls.get(name, "error"),))
    for dense in schema.dense_columns:
        roles[dense.name] = DenseRole((dense.name,), (dense.nulls,), dense)
    for feature in schema.sparse:
        known = feature.name in in_range
        own = (feature.nulls,) * len(feature.sources)
        roles[feature.name] = FeatureRole(feature.sources, own, feature, known)
    for feature in schema.sparse:
        if feature.scored:
            sources = feature.sources
            errors: tuple[Nulls, ...] = tuple("error" for _ in sources)
            roles[feature.weights_name] = ScoreRole(sources, errors, feature, False)
    return roles


def _kept(
    chunk: pa.Table, roles: Mapping[str, Role], dropped: Counter[str]
) -> npt.NDArray[np.int64] | None:
    """The rows that are left after rows with nulls were dropped; None if all are left."""
    lacking: dict[str, Mask] = {}
    for role in roles.values():
        for source, nulls in zip(role.sources, role.nulls, strict=True):
            if nulls != "drop":
                continue
            parts = [role.missing(part, source) for part in chunk[source].chunks]
            mask = np.concatenate([np.zeros(0, np.bool_), *parts])
            lacking[source] = lacking[source] | mask if source in lacking else mask
    dropped.update({source: int(mask.sum()) for source, mask in lacking.items()})
    gone = np.logical_or.reduce([*lacking.values()]) if lacking else np.zeros(0, np.bool_)
    return np.flatnonzero(~gone) if gone.any() else None
