"""The rows of a request as a batch, by the schema that a model was trained with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from recd_plugins.data.batch import Batch
from recd_plugins.data.conform.rows import conform, source_columns
from recd_plugins.data.decoded import decode_rows
from recd_plugins.data.foreign import ForeignSchema, as_foreign
from recd_plugins.data.importing.struct_fields import fields_of, of_fields
from recd_plugins.data.schema import Schema
from recd_plugins.errors import DataError
from recd_plugins.sparse.rows.blocks import gather_blocks

__all__ = ["batch_of"]


def batch_of(
    rows: pa.Table | pa.RecordBatch, schema: Schema | ForeignSchema, where: str = "rows"
) -> Batch:
    """The rows of a request as a model takes them, by the schema that it was trained with.

    Ids, times and floats become what they became in training, by the same vocabularies and hashes.
    If the schema is a table's, the rows must be as in the table: ids are already rows of embedding
    tables, and the weights of scored ids have columns of their own. Rows need no labels, sessions,
    times or weights; missing labels are 0. No row is left out: a null in a column that says `nulls:
    drop` is an error. Fields of structs are columns, as for `recd data import`.
    """
    rows = _as_table(rows, where)
    foreign = as_foreign(schema) if isinstance(schema, Schema) else schema.keeping_all
    whole = schema if isinstance(schema, Schema) else foreign.conformed
    labels = [name for name in whole.label_names if name in rows.column_names]
    columns = [*labels, *whole.dense, *whole.sparse_names, *foreign.conformed.weights_names]
    rows = _with_fields(rows, source_columns(foreign, columns))
    found = conform(rows, foreign, where, columns=columns, drops=False)
    for name in whole.weights_names:
        if name not in found.column_names:
            found = found.append_column(name, _weights(rows, name, where))
    for name in whole.label_names:
        if name not in labels:
            found = found.append_column(name, pa.array(np.zeros(rows.num_rows, np.float32)))
    if whole.sample_weight is not None:
        ones = pa.array(np.ones(rows.num_rows, np.float32))
        found = found.append_column(whole.sample_weight, ones)
    decoded = decode_rows(found, whole, where)
    (block,) = gather_blocks(
        [decoded.features[name] for name in whole.sparse_names],
        np.arange(rows.num_rows),
        [rows.num_rows],
    )
    return Batch(
        dense=decoded.dense,
        features=block.kjt(whole.sparse_names),
        labels=decoded.labels,
        weights=decoded.weights,
    )


def _as_table(rows: pa.Table | pa.RecordBatch, where: str) -> pa.Table:
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if not isinstance(rows, pa.Table):
        raise DataError(
            f"{where}: must be a pyarrow.Table, but is {type(rows).__name__!r}. "
            "pyarrow.Table.from_pylist makes one of a list of mappings."
        )
    if rows.num_rows == 0:
        raise DataError(
            f"{where}: has no row, and a model takes one or more. Ask it about no empty request."
        )
    return rows


def _with_fields(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows with a column for each named field of a struct that they hold."""
    lacked = [name for name in names if name not in rows.column_names]
    if not lacked:
        return rows
    fields = fields_of({one.name: one.type for one in rows.schema})
    found = {name: fields[name] for name in lacked if name in fields}
    made = of_fields(rows, found)
    for name in found:
        rows = rows.append_column(name, made[name])
    return rows


def _weights(rows: pa.Table, name: str, where: str) -> pa.ChunkedArray:
    """The column with the weights of a scored feature, as in a table."""
    if name not in rows.column_names:
        raise DataError(
            f"{where}: has no column {name!r}, the weights of a scored feature. Add it."
        )
    return rows[name].cast(pa.list_(pa.float32()))
