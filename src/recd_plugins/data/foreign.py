"""The columns of foreign files, and what each becomes: a `ForeignSchema`.

`dataset.schema` of registry.yaml is one. It is turned into a `Schema`, which is what every reader
of rows sees; `conform` turns the foreign columns into those of the `Schema`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from recd_plugins.config import Config, Range
from recd_plugins.data.schema import (
    Fill,
    Label,
    Nulls,
    Schema,
    SparseFeature,
    Vector,
    check_unique,
    first_label,
)
from recd_plugins.errors import DataError, RegistryError, nearest
from recd_plugins.storage.uri import Location

__all__ = [
    "DateDigits",
    "DenseColumn",
    "ForeignFeature",
    "ForeignSchema",
    "TextDates",
    "TimeUnit",
    "as_foreign",
    "null_instead_of",
]

NULLABLE = ("session_id", "timestamp")
"""The options that name a column of their own name by default, and may be null."""

DateDigits = Literal[
    "yymmdd", "yymmddhh", "yyyymmdd", "yyyymmddhh", "yyyymmddhhmm", "yyyymmddhhmmss"
]
TextDates = Literal[
    "yyyy-mm-dd",
    "dd/mm/yyyy",
    "mm/dd/yyyy",
    "dd mmm yyyy",
    "dd/mm/yy",
    "mm/dd/yy",
    "yy/mm/dd",
]
TimeUnit = Literal["s", "ms", "us", "ns", DateDigits, TextDates]


@dataclass(frozen=True, kw_only=True)
class ForeignFeature(SparseFeature):
    """Ids of any kind, one or a list of them per sample, and how they become rows of a table."""

    ids: Literal["as_is", "hash", "vocabulary"] = "as_is"
    """as_is: integers in [0, num_ids). hash: any integers or texts, spread over [0, num_ids) by
    XXH64. vocabulary: an id that a file lists becomes its place there; the others share the ids
    that it keeps for them."""
    vocabulary: Location | None = None
    """The file, for `ids: vocabulary`. `recd data vocabulary` writes one; so does `recd data
    import` if none is named."""
    weights: str | None = None
    """The column with the weights of its ids, a list as long as theirs in each row. It is for ids
    whose weights do not come with them, as pairs."""
    hash_seed: Annotated[int, Range(ge=0, le=2**32)] = 0
    """The seed of `ids: hash`: another one spreads the ids differently."""
    nulls: Nulls = "empty"
    """The treatment of nulls: of a whole list, of an id in a list, or of a sample's only id."""
    missing: tuple[int | str, ...] = ()
    """The values that stand for a null, as -1, or the 0 that lists are padded with: `nulls` says
    what becomes of them. An integer and the text that spells it are the same value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is not None:
            object.__setattr__(self, "scored", True)
        if self.vocabulary is not None and self.ids != "vocabulary":
            raise RegistryError(
                f"feature {self.name!r} has ids: {self.ids}, and vocabulary is {self.vocabulary}. "
                "Only `ids: vocabulary` goes with `vocabulary: FILE`.",
                "vocabulary",
            )

    def idle_options(self) -> Mapping[str, str]:
        if self.ids == "hash":
            return {}
        why = f"it is for `ids: hash`, and {self.name!r} has `ids: {self.ids}`"
        return dict.fromkeys(self.set_among("hash_seed"), why)

    @property
    def paired(self) -> bool:
        """Whether its column has pairs of an id and a weight."""
        return self.scored and self.weights is None

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that it is made of."""
        return (self.name,) if self.weights is None else (self.name, self.weights)

    @property
    def conformed(self) -> SparseFeature:
        """The feature once its ids are rows of a table."""
        names = [one.name for one in dataclasses.fields(SparseFeature)]
        return SparseFeature(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class DenseColumn(Config):
    """One float per sample, or a vector of them."""

    name: str
    """The column's name."""
    width: Annotated[int | None, Range(ge=1)] = None
    """The number of floats of a vector, the same in every row; by default the column holds one
    number."""
    nulls: Nulls = "error"
    """What becomes of nulls, NaN and infinity; by default they are errors."""
    scale: Literal["as_is", "log"] = "as_is"
    """`log` replaces x by sign(x) log(1 + abs(x)), and a value that stands for nulls too. Take it
    for counts and amounts, whose largest values would drown the others."""


@dataclass(frozen=True, kw_only=True)
class ForeignSchema(Config):
    """The columns of foreign files and what they mean."""

    label: str = "label"
    """The column with the target, 0 or 1. Give `labels` instead for several targets or one of
    another kind."""
    labels: tuple[Label, ...] = ()
    """The columns with the targets, if there are several or one that is not a click."""
    sample_weight: str | None = None
    """The column with each sample's weight in loss and metrics. By default all weigh 1."""
    session_id: str | tuple[str, ...] | None = "session_id"
    """The column with the session, several columns that identify it together, or null if the data
    have no sessions. Whole numbers stay as they are; anything else is hashed to 64 bits."""
    timestamp: str | None = "timestamp"
    """The column with the time, or null if the data have none. It has a date or time type of Arrow
    (in UTC if it has no time zone), or numbers or texts that `timestamp_unit` describes."""
    timestamp_unit: TimeUnit = "ms"
    """How to read a timestamp that is a number or a text. For a number it is the unit of time since
    1970, or the digits of a date in UTC, as 14102105 for `yymmddhh`. For a text it is the form of
    its date: `yyyy-mm-dd` is ISO 8601, with a zone or in UTC; `dd mmm yyyy` has the month's English
    name, in any order, as 24/Sep/2012:03:35:21 +0000 or Mon Sep 24 03:35:21 +0000 2012. In the
    other forms . and - may separate the numbers too, and a time in UTC may follow, as 13:05 or 1:05
    PM. A year of two digits is one of 1969 to 2068."""
    dense: tuple[str | DenseColumn, ...] = ()
    """The columns with one float each; give a vector as a mapping with its name and width."""
    sparse: tuple[ForeignFeature, ...] = ()
    """The columns with ids."""
    nulls: Mapping[str, Nulls] = field(default_factory=dict)
    """For a column without an entry of its own (the session, the time, the weight, a plain label or
    dense column), what becomes of its nulls. By default nulls are errors. Where the column of
    the session or the time is a feature too, this is for the session or the time, and the feature's
    entry for the feature."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "label", first_label(self.label, self.labels))
        if self.session_id == ():
            raise RegistryError("names no column. Name some, or set it to null.", "session_id")
        check_unique(self.session_columns)
        check_unique([*self._floats, *(feature.name for feature in self.sparse)])
        self._check_nulls()
        _ = self.conformed  # it may name a column twice

    def idle_options(self) -> Mapping[str, str]:
        if self.timestamp is not None:
            return {}
        why = "it is the unit of `timestamp`, and that is null"
        return dict.fromkeys(self.set_among("timestamp_unit"), why)

    @property
    def session_columns(self) -> tuple[str, ...]:
        if self.session_id is None:
            return ()
        return (self.session_id,) if isinstance(self.session_id, str) else self.session_id

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the session and of the time."""
        times = () if self.timestamp is None else (self.timestamp,)
        return (*self.session_columns, *times)

    @property
    def hashed(self) -> tuple[str, ...]:
        """The columns whose values may be of any kind: sessions, and ids that are hashed or looked
        up."""
        ids = (feature.name for feature in self.sparse if feature.ids != "as_is")
        return (*self.session_columns, *ids)

    @cached_property
    def label_columns(self) -> tuple[Label, ...]:
        """The labels, with what stands for their nulls."""
        only = Label(name=self.label, nulls=self.nulls.get(self.label, "error"))
        return self.labels or (only,)

    @cached_property
    def dense_columns(self) -> tuple[DenseColumn, ...]:
        """The dense columns, with what stands for their nulls."""
        return tuple(
            DenseColumn(name=one, nulls=self.nulls.get(one, "error"))
            if isinstance(one, str)
            else one
            for one in self.dense
        )

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Every column of the files that is read, each once."""
        names = (
            *self.keys,
            *self._floats,
            *(source for feature in self.sparse for source in feature.sources),
        )
        return tuple(dict.fromkeys(names))

    @cached_property
    def drops(self) -> tuple[str, ...]:
        """The columns in which a null drops the row."""
        own = ((one.name, one.nulls) for one in self._entries())
        each = (*own, *self.nulls.items())
        return tuple(dict.fromkeys(name for name, nulls in each if nulls == "drop"))

    def key_nulls(self, name: str) -> Nulls:
        """What becomes of a null of the session or the time in this column of theirs. If its entry
        as a feature drops the row, no null is left."""
        return self.nulls.get(name, "drop" if name in self.drops else "error")

    @cached_property
    def vocabularies(self) -> tuple[Location, ...]:
        """The files in which ids are looked up, each once."""
        named = (feature.vocabulary for feature in self.sparse)
        return tuple(dict.fromkeys(one for one in named if one is not None))

    def vocabulary_digests(self) -> dict[Location, str]:
        """These files, each with a digest of its present content."""
        if not self.vocabularies:
            return {}
        from recd_plugins.data.conform.vocabulary import vocabulary_digest  # numba

        return {file: vocabulary_digest(file) for file in self.vocabularies}

    def identity(self, digests: Mapping[Location, str]) -> str:
        """Identifies what this schema makes of columns. Its vocabularies, which have these digests,
        count by their content, not by where they lie."""
        sparse = tuple(
            one
            if one.vocabulary is None
            else dataclasses.replace(one, vocabulary=Path(digests[one.vocabulary]))
            for one in self.sparse
        )
        return dataclasses.replace(self, sparse=sparse).to_json()

    @cached_property
    def keeping_all(self) -> ForeignSchema:
        """The same schema, in which no null drops a row."""

        def kept(one: Any) -> Any:
            drops = not isinstance(one, str) and one.nulls == "drop"
            return dataclasses.replace(one, nulls="error") if drops else one

        return dataclasses.replace(
            self,
            labels=tuple(map(kept, self.labels)),
            dense=tuple(map(kept, self.dense)),
            sparse=tuple(map(kept, self.sparse)),
            nulls={name: nulls for name, nulls in self.nulls.items() if nulls != "drop"},
        )

    @cached_property
    def conformed(self) -> Schema:
        """The schema of the rows that are made of these columns."""
        weight = () if self.sample_weight is None else (self.sample_weight,)
        features = tuple(feature.conformed for feature in self.sparse)
        taken = {*self._floats, *weight}
        for feature in features:
            taken |= {feature.name, feature.weights_name} if feature.scored else {feature.name}
        session = self.session_columns
        if session:
            session = (_free(session[0] if len(session) == 1 else "session_id", taken),)
            taken |= {*session}
        return Schema(
            label=self.label,
            labels=self.labels,
            sample_weight=self.sample_weight,
            session_id=session[0] if session else None,
            timestamp=None if self.timestamp is None else _free(self.timestamp, taken),
            dense=tuple(one.name for one in self.dense_columns),
            vectors=tuple(
                Vector(name=one.name, width=one.width)
                for one in self.dense_columns
                if one.width is not None
            ),
            sparse=features,
        )

    def having(self, names: Collection[str]) -> ForeignSchema:
        """The same schema with only these of its sparse features and dense columns."""
        gone = {one.name for one in self.dense_columns} | {one.name for one in self.sparse}
        gone -= {*names}
        return dataclasses.replace(
            self,
            dense=tuple(
                one for one in self.dense if (one if isinstance(one, str) else one.name) not in gone
            ),
            sparse=tuple(feature for feature in self.sparse if feature.name not in gone),
            nulls={
                name: nulls
                for name, nulls in self.nulls.items()
                if name not in gone or name in self.keys
            },
        )

    def feature(self, name: str) -> ForeignFeature:
        for feature in self.sparse:
            if feature.name == name:
                return feature
        names = [feature.name for feature in self.sparse]
        raise DataError(f"no sparse feature {name!r}; {nearest(name, names)}")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"), default=str)

    @property
    def _floats(self) -> tuple[str, ...]:
        weight = () if self.sample_weight is None else (self.sample_weight,)
        dense = (one if isinstance(one, str) else one.name for one in self.dense)
        return (
            *(label.name for label in self.labels or (Label(name=self.label),)),
            *weight,
            *dense,
        )

    def _entries(self) -> Iterator[Label | DenseColumn | ForeignFeature]:
        yield from self.labels
        yield from (one for one in self.dense if isinstance(one, DenseColumn))
        yield from self.sparse

    def _check_nulls(self) -> None:
        entries = {one.name for one in self._entries()}
        plain = {*self.keys, *({*self._floats} - entries)}
        for name in self.nulls:
            if name not in plain:
                hint = (
                    f"say it in the entry of {name!r}, as `nulls: ...`"
                    if name in entries
                    else nearest(name, plain)
                )
                raise RegistryError(f"no plain column {name!r}; {hint}", "nulls")
        label = {self.label} - entries
        for name, nulls in self.nulls.items():
            if nulls == "empty" and name not in label:
                raise RegistryError(_no_empty(name), f"nulls.{name}")
        for one in self.dense:
            if isinstance(one, DenseColumn) and one.nulls == "empty":
                raise RegistryError(_no_empty(one.name), "dense")
        for each in (*self._entries(), *self.label_columns):
            floats = not isinstance(each, ForeignFeature)
            if floats and isinstance(each.nulls, Fill) and isinstance(each.nulls.value, str):
                raise RegistryError(
                    f"column {each.name!r} holds numbers, which {each.nulls.value!r} is not. Give "
                    "a number, as `nulls: {value: 0}`.",
                    "nulls",
                )


def _no_empty(name: str) -> str:
    return (
        f"column {name!r} has a value in every row: nulls cannot be empty. Say drop, error or "
        "{value: ...}."
    )


def _free(name: str, taken: set[str]) -> str:
    """This name for a column, or another one if a feature has it already."""
    while name in taken:
        name += "_key"
    return name


def null_instead_of(column: str) -> str:
    """What to write in a schema for data without this column, if it is one that a schema names by
    default; else nothing."""
    if column not in NULLABLE:
        return ""
    return f"Where there is none, write `{column}: null` in the schema: this name is its default."


def as_foreign(schema: Schema) -> ForeignSchema:
    """A table's own schema as a foreign schema of files whose columns need no conversion."""
    names = [one.name for one in dataclasses.fields(SparseFeature)]
    return ForeignSchema(
        label=schema.label,
        labels=schema.labels,
        sample_weight=schema.sample_weight,
        session_id=schema.session_id,
        timestamp=schema.timestamp,
        dense=tuple(
            DenseColumn(name=name, width=width) if (width := schema.width(name)) else name
            for name in schema.dense
        ),
        sparse=tuple(
            ForeignFeature(
                **{name: getattr(one, name) for name in names if name != "scored"}, nulls="error"
            )
            for one in schema.sparse
        ),
    )
