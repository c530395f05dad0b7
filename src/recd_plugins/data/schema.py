"""What a row is: session, timestamp, label, dense floats, sparse lists of ids.

A schema travels in the footer of every file of a table (`METADATA_KEY`), as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pyarrow as pa

from recd_plugins.config import Config, Range, parse
from recd_plugins.errors import DataError, RecdError, RegistryError, nearest

__all__ = ["METADATA_KEY", "Schema", "SparseFeature"]

METADATA_KEY = b"recd_schema"

IDS = pa.list_(pa.field("element", pa.int64(), nullable=False))


@dataclass(frozen=True, kw_only=True)
class SparseFeature(Config):
    """A list of ids per sample, each in [0, num_ids)."""

    name: str
    """The column's name."""
    num_ids: Annotated[int, Range(ge=1)]
    """Ids lie in [0, num_ids): the rows that an embedding table for it needs."""
    kind: Literal["user", "item"] = "item"
    """User features tend to repeat within a session, item features to change."""
    table: str | None = None
    """Features that name one table share its rows; its own by default."""
    sequence: bool = False
    """The order of its ids carries meaning: a history."""

    @property
    def table_name(self) -> str:
        return self.table or self.name


@dataclass(frozen=True, kw_only=True)
class Schema(Config):
    """The columns of a table and what they mean."""

    label: str = "label"
    """The column with the target, 0 or 1."""
    session_id: str | None = "session_id"
    """The column with the session, or nothing where data has none."""
    timestamp: str | None = "timestamp"
    """The column with the time in ms, or nothing where data has none."""
    dense: tuple[str, ...] = ()
    """The columns with one float each."""
    sparse: tuple[SparseFeature, ...] = ()
    """The columns with a list of ids each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        seen: set[str] = set()
        for name in self.columns:
            if name in seen:
                raise RegistryError(f"column {name!r} is named twice.")
            seen.add(name)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column, in the order of the file."""
        keys = [name for name in (self.session_id, self.timestamp) if name is not None]
        return (*keys, self.label, *self.dense, *self.sparse_names)

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
        """The same schema with these sparse features behind its own."""
        return dataclasses.replace(self, sparse=(*self.sparse, *features))

    def drop(self, names: Iterable[str]) -> Schema:
        """The same schema without the sparse features of these names."""
        gone = frozenset(names)
        return dataclasses.replace(
            self, sparse=tuple(feature for feature in self.sparse if feature.name not in gone)
        )

    def arrow(self) -> pa.Schema:
        """The Arrow schema of a table, this schema in its metadata."""
        fields = [
            pa.field(name, pa.int64(), nullable=False)
            for name in (self.session_id, self.timestamp)
            if name is not None
        ]
        fields += [
            pa.field(name, pa.float32(), nullable=False) for name in (self.label, *self.dense)
        ]
        fields += [pa.field(name, IDS, nullable=False) for name in self.sparse_names]
        return pa.schema(fields, metadata={METADATA_KEY: self.to_json().encode()})

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Schema:
        try:
            options: Mapping[str, Any] = json.loads(text)
            return parse(cls, options, f"{where}: schema")
        except (RecdError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{where}: its schema cannot be read: {error}") from error
