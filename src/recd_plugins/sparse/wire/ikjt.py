"""IKJTs as Arrow: dictionary columns, and the bytes of an IPC stream; nothing is pickled.

On the wire a group is one dictionary<struct> column: its indices are the inverse lookup, sent
once, and each field of the struct is a key's unique rows (then its weights, where it has some).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from recd_plugins.errors import DataError
from recd_plugins.sparse.arrow import jagged_from_arrow, jagged_to_arrow
from recd_plugins.sparse.groups import Groups, agreed_groups
from recd_plugins.sparse.jagged import Jagged
from recd_plugins.sparse.rows.weighted import Weighted

__all__ = [
    "from_bytes",
    "from_columns",
    "from_record_batch",
    "to_bytes",
    "to_columns",
    "to_record_batch",
]

METADATA_KEY = b"recd_plugins.ikjt"


class Unwired(NamedTuple):
    """What came over the wire, not yet checked."""

    groups: Groups
    rows: dict[str, Weighted]
    """Each key's unique rows."""
    lookups: Sequence[Tensor]
    """[B] of each group."""


def to_columns(
    groups: Groups, rows: Mapping[str, Weighted], lookups: Sequence[Tensor]
) -> dict[str, pa.DictionaryArray]:
    """Each key as a column dictionary<list<integer>>; all lie in one array, uncopied."""
    every = Weighted.joined([rows[key] for group in groups for key in group])
    if every.weights is not None:
        raise DataError(
            "to_arrow: its ids have weights, for which a column of ids has no place. Use "
            "to_record_batch."
        )
    lists, first, columns = jagged_to_arrow(Jagged(every.values, every.lengths)), 0, {}
    for group, lookup in zip(groups, lookups, strict=True):
        for key in group:
            count = rows[key].lengths.numel()
            unique = lists.slice(first, count)
            columns[key] = pa.DictionaryArray.from_arrays(_indices(lookup, count), unique)
            first += count
    return columns


def from_columns(
    columns: Mapping[str, pa.DictionaryArray], groups: Sequence[Sequence[str]] | None
) -> Unwired:
    """From columns dictionary<list<integer>>; values as views of one tensor if in one array."""
    rows: dict[str, Weighted] = {}
    lookups: dict[str, Tensor] = {}
    seen: dict[int, Tensor] = {}
    for key, column in columns.items():
        if not pa.types.is_dictionary(column.type):
            raise DataError(f"{key!r}: is {column.type}, but must be a dictionary of lists.")
        lookups[key] = _lookup(column, repr(key))
        rows[key] = _shared(column.dictionary, repr(key), seen)
    checked, agreed = agreed_groups(lookups, groups, "from_arrow")
    return Unwired(checked, rows, agreed)


def to_record_batch(
    groups: Groups, rows: Mapping[str, Weighted], lookups: Sequence[Tensor]
) -> pa.RecordBatch:
    """One column per group; weights included."""
    columns, weighted = [], rows[groups[0][0]].weights is not None
    for group, lookup in zip(groups, lookups, strict=True):
        lists = [jagged_to_arrow(Jagged(rows[key].values, rows[key].lengths)) for key in group]
        names = list(group)
        if weighted:
            for key in group:
                weights = rows[key].weights
                assert weights is not None
                lists.append(jagged_to_arrow(Jagged(weights, rows[key].lengths)))
                names.append(f"weights of {key}")
        unique = pa.StructArray.from_arrays(lists, names)
        columns.append(pa.DictionaryArray.from_arrays(_indices(lookup, len(unique)), unique))
    said = json.dumps({"groups": groups, "weighted": weighted})
    fields = [pa.field(str(index), column.type) for index, column in enumerate(columns)]
    schema = pa.schema(fields, metadata={METADATA_KEY: said.encode()})
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def from_record_batch(batch: pa.RecordBatch) -> Unwired:
    """What `to_record_batch` was given."""
    said = (batch.schema.metadata or {}).get(METADATA_KEY)
    if said is None:
        raise DataError(
            f"a record batch has no {METADATA_KEY.decode()!r} in its metadata, so it is no IKJT. "
            "Make it by to_record_batch."
        )
    try:
        batch.validate(full=True)
        told = json.loads(said)
        groups, weighted = told["groups"], told["weighted"]
        rows: dict[str, Weighted] = {}
        lookups = []
        for group, column in zip(groups, batch.columns, strict=True):
            lookups.append(_lookup(column, f"group {group}"))
            fields = column.dictionary.flatten()
            for index, key in enumerate(group):
                ids = jagged_from_arrow(fields[index], repr(key))
                weights = fields[len(group) + index].flatten() if weighted else None
                rows[key] = Weighted(*ids, None if weights is None else torch.from_dlpack(weights))
    except (pa.ArrowException, ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"a record batch is a damaged IKJT ({error}). Send it again.") from error
    return Unwired(tuple(map(tuple, groups)), rows, lookups)


def to_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """An Arrow IPC stream of one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def from_bytes(data: bytes | pa.Buffer) -> pa.RecordBatch:
    """What `to_bytes` was given, on the same memory."""
    try:
        with pa.ipc.open_stream(data) as stream:
            return stream.read_next_batch()
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise DataError(f"these bytes are no Arrow stream ({error}). Send them again.") from error


def _indices(lookup: Tensor, count: int) -> pa.Array:
    """As few bytes for each as `count` unique samples need."""
    return pa.array(lookup.numpy().astype(np.min_scalar_type(-max(count, 1))))


def _lookup(column: pa.DictionaryArray, name: str) -> Tensor:
    if column.null_count:
        raise DataError(
            f"{name}: {column.null_count} of its rows are null. Write a missing list as an empty "
            "one where the column is made."
        )
    return torch.from_numpy(column.indices.to_numpy(zero_copy_only=False).astype(np.int64))


def _shared(dictionary: pa.Array, name: str, seen: dict[int, Tensor]) -> Weighted:
    """The dictionary's rows, as a view of one tensor for all that lie in one array."""
    rows = Weighted(*jagged_from_arrow(dictionary, name))
    if rows.values.numel() and dictionary.type.value_type in (pa.int32(), pa.int64()):
        ids = dictionary.values
        whole = seen.setdefault(ids.buffers()[1].address, torch.from_dlpack(ids))
        first = (rows.values.data_ptr() - whole.data_ptr()) // whole.element_size()
        if 0 <= first <= whole.numel() - rows.values.numel():
            rows = dataclasses.replace(rows, values=whole[first : first + rows.values.numel()])
    return rows
