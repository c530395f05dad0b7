"""The schema that a table carries in the footers of its files."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.data.foreign import DenseColumn, ForeignFeature, ForeignSchema
from recd_plugins.data.schema import METADATA_KEY, Schema, SparseFeature
from recd_plugins.storage.uri import Location, input_file

__all__ = ["as_foreign", "schema_in_footer"]


def schema_in_footer(path: Location) -> Schema | None:
    """The schema that a table carries; none where somebody else wrote it."""
    files: list[Location] = [*path.glob("*.parquet")] if path.is_dir() else [path]
    for file in sorted(files, key=str)[:1]:
        try:
            with input_file(file) as opened:
                text = (pq.read_metadata(opened).metadata or {}).get(METADATA_KEY)
        except (pa.ArrowException, OSError):
            return None
        return None if text is None else Schema.from_json(text, str(file))
    return None


def as_foreign(schema: Schema) -> ForeignSchema:
    """A table's own schema, as one of files whose columns are such already."""
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
