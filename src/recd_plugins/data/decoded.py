"""Rows of a schema as tensors, which share the memory of their columns where possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from recd_plugins.data.conform.floats import check_finite, check_label, check_weight, finite
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import DataError
from recd_plugins.sparse.arrow import (
    floats_from_arrow,
    held_chunks,
    jagged_chunks,
    vectors_from_arrow,
)
from recd_plugins.sparse.jagged import HeldOnce, Jagged, WeightedJagged

__all__ = ["DecodedRows", "absent_rows", "decode_rows"]


@dataclass(frozen=True)
class DecodedRows:
    """N rows as tensors."""

    dense: Tensor
    """[N, n_dense] float32."""
    labels: Tensor
    """[N] float32; [N, T] of T labels."""
    weights: Tensor
    """[N] float32."""
    features: Mapping[str, Sequence[Jagged | HeldOnce | WeightedJagged]]
    """The rows of each sparse feature, in parts; those of a scored feature with weights."""
    keys: Mapping[str, pa.ChunkedArray]
    """[N] for each requested column of sessions or times."""


def absent_rows(schema: Schema, num_rows: int, keys: Sequence[str]) -> DecodedRows:
    """Rows in place of those of a stripe that is left out: without ids, with weight 0."""

    def none(feature: SparseFeature) -> Jagged | WeightedJagged:
        ids, lengths = (
            torch.empty(0, dtype=torch.int64, device="cpu"),
            torch.zeros(num_rows, dtype=torch.int32, device="cpu"),
        )
        if feature.scored:
            return WeightedJagged(ids, lengths, torch.empty(0, dtype=torch.float32, device="cpu"))
        return Jagged(ids, lengths)

    targets, zeros = len(schema.targets), partial(torch.zeros, dtype=torch.float32)
    no_keys = pa.chunked_array([np.zeros(num_rows, np.int64)])
    return DecodedRows(
        dense=zeros(num_rows, schema.dense_width),
        labels=zeros(num_rows) if targets == 1 else zeros(num_rows, targets),
        weights=zeros(num_rows),
        features={feature.name: [none(feature)] for feature in schema.sparse},
        keys=dict.fromkeys(keys, no_keys),
    )


def decode_rows(
    rows: pa.Table, schema: Schema, where: str, keys: Sequence[str] = (), first_row: int = 0
) -> DecodedRows:
    """The rows as tensors, checked to be finite where they must be; `keys` stay columns.

    `where` and the number of the first row there are for errors.
    """
    labels = _floats(rows, schema.label_names, schema, where, first_row)
    for label in schema.targets:
        check_label(rows[label.name], label, Spot(where, label.name, chunk=first_row))
    weights = torch.ones(rows.num_rows, dtype=torch.float32, device="cpu")
    if schema.sample_weight is not None:
        name = schema.sample_weight
        check_weight(rows[name], Spot(where, name, chunk=first_row))
        weights = _floats(rows, [schema.sample_weight], schema, where, first_row).squeeze(1)
    return DecodedRows(
        dense=_floats(rows, schema.dense, schema, where, first_row),
        labels=labels.squeeze(1) if len(schema.targets) == 1 else labels,
        weights=weights,
        features={feature.name: _jagged(rows, feature, where) for feature in schema.sparse},
        keys={name: rows[name] for name in keys},
    )


def _floats(
    rows: pa.Table, names: Sequence[str], schema: Schema, where: str, first_row: int
) -> Tensor:
    """[N, W] float32 of some columns."""
    columns = []
    for name in names:
        width = schema.width(name)
        if width is None:
            column = floats_from_arrow(rows[name], f"{where}: {name!r}").unsqueeze(1)
        else:
            column = vectors_from_arrow(rows[name], width, f"{where}: {name!r}")
        if name not in schema.without_target and not finite(column.numpy()):
            check_finite(rows[name], Spot(where, name, chunk=first_row))
        columns.append(column)
    return _columns(columns, rows.num_rows)


def _jagged(
    rows: pa.Table, feature: SparseFeature, where: str
) -> Sequence[Jagged | HeldOnce | WeightedJagged]:
    """The rows of a feature, in parts; those of a scored feature with their weights."""
    name, weights_name = feature.name, feature.weights_name
    if not feature.scored:
        return held_chunks(rows[name], f"{where}: {name!r}")
    parts = jagged_chunks(rows[name], f"{where}: {name!r}")
    weights = jagged_chunks(rows[weights_name], f"{where}: {weights_name!r}", weights=True)
    one, other = (
        [part.lengths.numpy() for part in each if len(part.lengths)] for each in (parts, weights)
    )
    if not np.array_equal(np.concatenate([[], *one]), np.concatenate([[], *other])):
        raise DataError(
            f"{where}: column {weights_name!r} does not have as many weights in each row as "
            f"{name!r} has ids. Write the table again."
        )
    numbers = torch.from_numpy(
        np.concatenate([np.empty(0, np.float32), *(part.values.numpy() for part in weights)])
    )
    if not finite(numbers.numpy()):
        raise DataError(
            f"{where}: column {weights_name!r} holds a weight that is not finite. Write the table "
            "again with finite weights."
        )
    cut = numbers.split([len(part.values) for part in parts])
    return [WeightedJagged(*part, some) for part, some in zip(parts, cut, strict=True)]


# torch.cat would wake torch's threads. They belong to the model, and waiting for them costs more
# than they save; numpy copies on the calling thread.


def _columns(columns: Sequence[Tensor], num_rows: int) -> Tensor:
    """[num_rows, w] each, side by side."""
    if not columns:
        return torch.empty(num_rows, 0, dtype=torch.float32, device="cpu")
    return torch.from_numpy(np.concatenate([column.numpy() for column in columns], axis=1))
