"""The schema of a row: session, timestamp, labels, dense floats, sparse lists of ids.

A schema is stored as JSON in the footer of every file of a table (`METADATA_KEY`). How columns of
foreign files become such rows is described in `foreign.py`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import pyarrow as pa

from recd_plugins.config import Config, Range, parse
from recd_plugins.errors import DataError, RecdError, RegistryError, nearest

__all__ = [
    "IDS",
    "METADATA_KEY",
    "NARROW_IDS",
    "TOO_LARGE",
    "WEIGHTS",
    "Fill",
    "Label",
    "Nulls",
    "Schema",
    "SparseFeature",
    "Vector",
    "check_unique",
    "first_label",
    "floats",
]

METADATA_KEY = b"recd_schema"

IDS = pa.list_(pa.field("element", pa.int64(), nullable=False))
"""The Arrow type of a feature's column: a list of int64 a row, without nulls in it."""
NARROW_IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))
"""The type of such a column in files if all of its ids fit."""
WEIGHTS = pa.list_(pa.field("element", pa.float32(), nullable=False))
FIT = 1 << 31
"""Ids below this fit into 4 signed bytes."""
TOO_LARGE = 1e15
"""Numbers beyond this soon make a model's loss infinite or NaN, at any rate of learning."""


@dataclass(frozen=True, kw_only=True)
class Fill(Config):
    """The value that stands for a null, or for a number that is not finite."""

    value: int | str | float
    """As it would be in the column: an id before it is hashed or looked up."""


Nulls = Literal["empty", "drop", "error"] | Fill
"""empty: no id; for a label, no target, so the sample counts in no loss and no metric. drop: the
row is left out. error: the table is refused."""


@dataclass(frozen=True, kw_only=True)
class Label(Config):
    """A target: what a model's output should be."""

    name: str
    """The column's name."""
    kind: Literal["click", "regression", "graded"] = "click"
    """What the target is: `click` is 0, 1 or a probability between them, with binary cross entropy
    on a logit; `regression` is any number, with squared error. `graded` is one of 0, 1, ... grades
    - 1, such as stars or relevance, with binary cross entropy of a logit with grade / (grades - 1),
    so that its sigmoid is the mean grade."""
    weight: Annotated[float, Range(gt=0)] = 1.0
    """The factor of this label's loss in the sum of all labels' losses."""
    grades: Annotated[int | None, Range(ge=2)] = None
    """The number of grades of a graded label."""
    nulls: Nulls = "error"
    """What becomes of nulls and of numbers that are not finite; by default they are errors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.grades is None) == (self.kind == "graded"):
            raise RegistryError(
                f"label {self.name!r} is {self.kind}, and grades is {self.grades}. A graded label "
                "must have a number of grades, such as `grades: 5`; other labels must not.",
                "grades",
            )

    @property
    def scale(self) -> float:
        """The number that a target is divided by for its loss: the highest grade for a graded
        label, else 1."""
        return 1.0 if self.grades is None else self.grades - 1.0


@dataclass(frozen=True, kw_only=True)
class Vector(Config):
    """A dense column with the same number of floats in each row."""

    name: str
    """The column's name."""
    width: Annotated[int, Range(ge=1)]
    """The number of floats in a row."""


@dataclass(frozen=True, kw_only=True)
class SparseFeature(Config):
    """A list of ids per sample, each in [0, num_ids)."""

    name: str
    """The column's name."""
    num_ids: Annotated[int, Range(ge=1)]
    """The number of ids, which are in [0, num_ids): as many rows as an embedding table needs."""
    kind: Literal["user", "item"] = "item"
    """Whose the feature is, the user's or the item's. Features of a user tend to repeat within a
    session, those of an item to change."""
    table: str | None = None
    """The name of the feature's table. Features that name the same table share its rows; by default
    a feature has a table of its own."""
    sequence: bool = False
    """Whether the order of its ids has a meaning, as in a history."""
    scored: bool = False
    """Whether each id has a weight, such as how much or how often."""

    @property
    def table_name(self) -> str:
        return self.table or self.name

    @property
    def weights_name(self) -> str:
        """The column with the weights of a scored feature: a list as long as that of its ids."""
        return f"{self.name}_weights"


@dataclass(frozen=True, kw_only=True)
class Schema(Config):
    """The columns of a table and what they mean."""

    label: str = "label"
    """The column with the target, 0 or 1; the first of `labels` where these are given."""
    labels: tuple[Label, ...] = ()
    """The columns with the targets, if there are several, or one that is not a click."""
    sample_weight: str | None = None
    """The column with each sample's weight in loss and metrics, or null if all have weight 1."""
    session_id: str | None = "session_id"
    """The column with the session, or null if the data have none."""
    timestamp: str | None = "timestamp"
    """The column with the time in ms, or null if the data have none."""
    dense: tuple[str, ...] = ()
    """The columns with one float each, or with a vector of them."""
    vectors: tuple[Vector, ...] = ()
    """The dense columns that hold vectors."""
    sparse: tuple[SparseFeature, ...] = ()
    """The columns with a list of ids each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "label", first_label(self.label, self.labels))
        check_unique(self._named)
        for feature in self.sparse if self.label else ():  # else it is of keys only, not of a table
            if feature.scored and feature.weights_name in self._named:
                raise RegistryError(
                    f"column {feature.weights_name!r} is named twice: it is also the name of the "
                    f"weights of {feature.name!r}, which is scored. Give the other column another "
                    "name."
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column, in the order of the file."""
        return (*self._named, *self.weights_names)

    @property
    def _named(self) -> tuple[str, ...]:
        """The columns that the schema names."""
        return (*self.key_columns, *self.float_columns, *self.sparse_names)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the session and the time, if there are any."""
        return tuple(name for name in (self.session_id, self.timestamp) if name is not None)

    @property
    def float_columns(self) -> tuple[str, ...]:
        """The columns of labels, sample weight and dense floats."""
        weight = () if self.sample_weight is None else (self.sample_weight,)
        return (*self.label_names, *weight, *self.dense)

    @cached_property
    def targets(self) -> tuple[Label, ...]:
        """The labels, one or several."""
        return self.labels or (Label(name=self.label),)

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.targets)

    @property
    def without_target(self) -> frozenset[str]:
        """The labels that some samples may lack: there they are NaN."""
        return frozenset(label.name for label in self.targets if label.nulls == "empty")

    @property
    def dense_width(self) -> int:
        """The number of dense floats of a sample: one per column, or those of its vector."""
        return sum(self.width(name) or 1 for name in self.dense)

    def width(self, name: str) -> int | None:
        """The number of floats of a dense column that holds a vector; None if it holds one
        number."""
        return next((one.width for one in self.vectors if one.name == name), None)

    @property
    def unscored_names(self) -> tuple[str, ...]:
        """The features whose ids have no weights."""
        return tuple(feature.name for feature in self.sparse if not feature.scored)

    @property
    def weights_names(self) -> tuple[str, ...]:
        """The columns with the weights of scored features."""
        return tuple(feature.weights_name for feature in self.sparse if feature.scored)

    @property
    def sparse_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.sparse)

    def feature(self, name: str) -> SparseFeature:
        for feature in self.sparse:
            if feature.name == name:
                return feature
        raise DataError(f"no sparse feature {name!r}; {nearest(name, self.sparse_names)}")

    def table_sizes(self) -> dict[str, int]:
        """Rows that each embedding table needs: the largest num_ids of its features."""
        sizes: dict[str, int] = {}
        for feature in self.sparse:
            sizes[feature.table_name] = max(feature.num_ids, sizes.get(feature.table_name, 0))
        return sizes

    def replace(self, features: Iterable[SparseFeature]) -> Schema:
        """The same schema with these sparse features in place of those of the same name."""
        new = {feature.name: feature for feature in features}
        for name in new:
            if name not in self.sparse_names:
                raise DataError(
                    f"no sparse feature {name!r} to replace; {nearest(name, self.sparse_names)} "
                    "Schema.add puts one beside them."
                )
        return dataclasses.replace(
            self, sparse=tuple(new.get(feature.name, feature) for feature in self.sparse)
        )

    def add(self, features: Iterable[SparseFeature]) -> Schema:
        """The same schema with these sparse features after its own."""
        return dataclasses.replace(self, sparse=(*self.sparse, *features))

    def drop(self, names: Iterable[str]) -> Schema:
        """The same schema without the sparse features of these names."""
        gone = frozenset(names)
        return dataclasses.replace(
            self, sparse=tuple(feature for feature in self.sparse if feature.name not in gone)
        )

    def having(self, names: Collection[str]) -> Schema:
        """The same schema with only these of its sparse features and dense columns."""
        return dataclasses.replace(
            self,
            dense=tuple(name for name in self.dense if name in names),
            vectors=tuple(one for one in self.vectors if one.name in names),
            sparse=tuple(feature for feature in self.sparse if feature.name in names),
        )

    def arrow(self) -> pa.Schema:
        """The Arrow schema of a table's rows, with this schema in its metadata."""
        return self._arrow

    def in_files(self) -> pa.Schema:
        """The Arrow schema of a table's files: `arrow`, but with ids of 4 bytes where they fit."""
        arrow = self.arrow()
        for feature in self.sparse:
            if feature.num_ids <= FIT:
                at = arrow.get_field_index(feature.name)
                arrow = arrow.set(at, arrow.field(at).with_type(NARROW_IDS))
        return arrow

    @cached_property
    def _arrow(self) -> pa.Schema:
        fields = [pa.field(name, pa.int64(), nullable=False) for name in self.key_columns]
        fields += [
            pa.field(name, floats(self.width(name)), nullable=False) for name in self.float_columns
        ]
        fields += [pa.field(name, IDS, nullable=False) for name in self.sparse_names]
        fields += [pa.field(name, WEIGHTS, nullable=False) for name in self.weights_names]
        return pa.schema(fields, metadata={METADATA_KEY: self.to_json().encode()})

    def to_json(self) -> str:
        """The schema as JSON, without those options of `LATER` that have their default: so an older
        table's JSON stays as it was."""
        return json.dumps(_plain(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Schema:
        try:
            options: Mapping[str, Any] = json.loads(text)
            return parse(cls, options, f"{where}: schema")
        except (RecdError, ValueError, TypeError, AttributeError) as error:
            what = str(error).rstrip(".")
            raise DataError(
                f"{where}: its schema cannot be read: {what}. Write the file again."
            ) from error


LATER = frozenset({"labels", "sample_weight", "vectors", "scored"})
"""Options that a footer has only if they are not the default, because older footers lack them."""


def _plain(value: Any) -> Any:
    """Configs as mappings, for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value))
        return {name: _plain(part) for name, part in fields if name not in LATER or part}
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def floats(width: int | None) -> pa.DataType:
    """The type of a dense column: one float per row, or a vector."""
    if width is None:
        return pa.float32()
    return pa.list_(pa.field("element", pa.float32(), nullable=False), width)


def first_label(label: str, labels: tuple[Label, ...]) -> str:
    """The first label's column; `RegistryError` if both are given and differ."""
    if not labels:
        return label
    if label not in ("label", labels[0].name):
        raise RegistryError(
            f"names label {label!r} beside labels {', '.join(one.name for one in labels)}. Put it "
            "among `labels`, or leave one of the two out.",
            "label",
        )
    return labels[0].name


def check_unique(columns: Iterable[str]) -> None:
    """Raises `RegistryError` for a column that is named twice."""
    seen: set[str] = set()
    for name in columns:
        if name in seen:
            raise RegistryError(f"column {name!r} is named twice. Name it once.")
        seen.add(name)
