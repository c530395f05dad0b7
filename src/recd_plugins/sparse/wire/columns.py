"""IKJTs as Arrow columns, dictionary<list<integer>>, one for each key.

A column's dictionary is the key's unique rows, its indices the inverse lookup of its group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from recd_plugins.errors import DataError
from recd_plugins.sparse.arrow import jagged_from_arrow, jagged_to_arrow
from recd_plugins.sparse.groups import Groups, agreed_groups
from recd_plugins.sparse.jagged import Jagged
from recd_plugins.sparse.rows.weighted import Weighted

__all__ = ["from_columns", "to_columns"]


def to_columns(
    groups: Groups, rows: Mapping[str, Weighted], lookups: Sequence[Tensor]
) -> dict[str, pa.DictionaryArray]:
    """Each key as a column; the dictionaries of all lie in one array, uncopied."""
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
) -> tuple[Groups, dict[str, Weighted], list[Tensor]]:
    """Their groups, each key's unique rows and each group's lookup [B], not yet checked.

    Values are views of one tensor where the dictionaries lie in one array.
    """
    rows: dict[str, Weighted] = {}
    lookups: dict[str, Tensor] = {}
    seen: dict[int, Tensor] = {}
    for key, column in columns.items():
        if not pa.types.is_dictionary(column.type):
            raise DataError(f"{key!r}: is {column.type}, but must be a dictionary of lists.")
        lookups[key] = _lookup(column, repr(key))
        rows[key] = _shared(column.dictionary, repr(key), seen)
    checked, agreed = agreed_groups(lookups, groups, "from_arrow")
    return checked, rows, agreed


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
