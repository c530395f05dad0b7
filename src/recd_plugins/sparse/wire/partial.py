"""Partial IKJTs as Arrow: a group is a dictionary of list views, which are [offset, length].

A column per group: its indices are the inverse lookup, its dictionary a struct with a list
view per key over the key's shared values, each beside its weight where it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from recd_plugins.errors import DataError
from recd_plugins.sparse.groups import Groups
from recd_plugins.sparse.rows.shared import SharedRows

__all__ = ["Viewed", "from_record_batch", "to_record_batch"]

METADATA = {b"recd_plugins.partial_ikjt": b"1"}


class Viewed(NamedTuple):
    """What a record batch holds, not yet checked."""

    groups: Groups
    rows: dict[str, SharedRows]
    """Each key's unique rows."""
    inverse_lookup: Tensor
    """[G, B]."""
    lengths: torch.dtype
    """Of the lengths of KJTs."""


def to_record_batch(
    groups: Groups, rows: Mapping[str, SharedRows], inverse_lookup: Tensor, lengths: torch.dtype
) -> pa.RecordBatch:
    """Shared values lie where they were; lengths of 64 bits make large list views."""
    columns = []
    for group, lookup in zip(groups, inverse_lookup, strict=True):
        unique = pa.StructArray.from_arrays(
            [_views(rows[key], lengths == torch.int64) for key in group], list(group)
        )
        indices = lookup.numpy().astype(np.min_scalar_type(-max(len(unique), 1)))
        columns.append(pa.DictionaryArray.from_arrays(pa.array(indices), unique))
    fields = [pa.field(str(index), column.type) for index, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=METADATA))


def from_record_batch(batch: pa.RecordBatch) -> Viewed:
    """What `to_record_batch` was given, on the same memory."""
    if not METADATA.items() <= (batch.schema.metadata or {}).items():
        raise DataError(
            f"a record batch lacks {METADATA} in its metadata, so it is no partial IKJT. Make it "
            "by to_record_batch."
        )
    groups: list[tuple[str, ...]] = []
    rows: dict[str, SharedRows] = {}
    lookups, large = [], False
    try:
        batch.validate(full=True)
        for column in batch.columns:
            unique = column.dictionary
            groups.append(tuple(field.name for field in unique.type))
            views: Sequence[pa.Array] = unique.flatten()
            rows |= zip(groups[-1], map(_rows, views), strict=True)
            large |= any(pa.types.is_large_list_view(view.type) for view in views)
            lookups.append(column.indices.to_numpy(zero_copy_only=False).astype(np.int64))
    except (pa.ArrowException, ValueError, AttributeError, TypeError) as error:
        raise DataError(f"a record batch is a damaged partial IKJT ({error}).") from error
    lookup = torch.from_numpy(np.stack(lookups)) if lookups else torch.empty(0, 0).long()
    return Viewed(tuple(groups), rows, lookup, torch.int64 if large else torch.int32)


def _views(rows: SharedRows, large: bool) -> pa.Array:
    values = pa.array(rows.values.numpy())
    if rows.weights is not None:
        weights = pa.array(rows.weights.numpy())
        values = pa.StructArray.from_arrays([values, weights], ["id", "weight"])
    kind, dtype = (pa.LargeListViewArray, np.int64) if large else (pa.ListViewArray, np.int32)
    offsets, sizes = (pa.array(column.astype(dtype)) for column in rows.spans.numpy().T)
    return kind.from_arrays(offsets, sizes, values)


def _rows(views: pa.Array) -> SharedRows:
    values, weights = views.values, None
    if views.null_count or values.null_count:
        raise ValueError("nulls among its lists or ids")
    if pa.types.is_struct(values.type):
        values, found = values.flatten()
        weights = torch.from_dlpack(found)
    spans = np.stack([views.offsets.to_numpy(), views.sizes.to_numpy()], axis=1)
    return SharedRows(torch.from_dlpack(values), weights, torch.from_numpy(spans.astype(np.int64)))
