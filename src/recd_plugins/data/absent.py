"""Columns that some files of a table lack: features that were added later, or removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.schema import Schema
from recd_plugins.errors import DataError, RegistryError, nearest
from recd_plugins.patterns import matching
from recd_plugins.storage.uri import Location

__all__ = ["AbsentColumns", "with_absent"]


class AbsentColumns:
    """The columns that may be absent from a file, and their types in the files that have them."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._lacked: dict[str, list[int]] = {}
        self._files = 0
        self.types: dict[str, pa.DataType] = {}
        """The type of each column that some file lacks, as another file has it."""

    def completed(self, arrow: pa.Schema, schema: Schema | ForeignSchema) -> pa.Schema:
        """A file's columns, and those that it lacks and may lack, with the types that `schema`
        needs."""
        if not self._patterns:
            return arrow
        whole = schema if isinstance(schema, Schema) else schema.conformed
        own = whole.arrow()
        names = (*whole.dense, *whole.sparse_names, *whole.weights_names)
        wanted = matching(self._patterns, names)
        if not wanted:
            raise RegistryError(
                f"no feature or dense column matches {self._patterns[0]!r}; "
                f"{nearest(self._patterns[0], names)}",
                "dataset.absent",
            )
        if isinstance(schema, ForeignSchema):  # the weights are in the column of the ids
            wanted = [name for name in wanted if name not in whole.weights_names]
        self._files += 1
        for name in wanted:
            if name in arrow.names:
                self.types[name] = arrow.field(name).type
            else:
                self._lacked.setdefault(name, []).append(self._files)
                # In a foreign file the rows become nulls, which fit any type.
                foreign = isinstance(schema, ForeignSchema)
                kind = pa.null() if foreign else own.field(name).type
                arrow = arrow.append(pa.field(name, self.types.get(name, kind)))
        return arrow

    def check(self, table: Location) -> None:
        """Raises `DataError` for a column that all files lack, and forgets the columns that none
        lacks."""
        for name, lacked in self._lacked.items():
            if len(lacked) == self._files:
                raise DataError(
                    f"{table}: none of its files ({self._files}) has column {name!r}, which the "
                    f"schema names; {nearest(name, self.types)} Take it out of the "
                    "schema."
                )
        self.types = {name: kind for name, kind in self.types.items() if name in self._lacked}


def with_absent(
    rows: pa.Table, columns: Sequence[str], types: Mapping[str, pa.DataType], *, empty: bool
) -> pa.Table:
    """The rows, with the `columns` that they lack added: empty lists and zeros, or nulls."""
    for name in columns:
        if name in types and name not in rows.column_names:
            made = _empty(types[name], rows.num_rows) if empty else None
            column = pa.nulls(rows.num_rows, types[name]) if made is None else made
            rows = rows.append_column(name, column)
    return rows.select(list(dict.fromkeys((*columns, *rows.column_names))))


def _empty(kind: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(
            pa.array(np.zeros(count + 1, np.int32)), pa.array([], kind.value_type), type=kind
        )
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(
            pa.array(np.zeros(count + 1, np.int64)), pa.array([], kind.value_type), type=kind
        )
    if pa.types.is_fixed_size_list(kind):
        zeros = pa.array(np.zeros(count * kind.list_size, np.float32)).cast(kind.value_type)
        return pa.FixedSizeListArray.from_arrays(zeros, type=kind)
    return pa.array(np.zeros(count, np.float32)).cast(kind)
