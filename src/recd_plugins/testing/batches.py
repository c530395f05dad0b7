"""Random samples of a schema, as batches and as tables, for training and for checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter

__all__ = [
    "from_lists",
    "random_batch",
    "random_batches",
    "random_table",
    "shape_of_labels",
    "to_lists",
]


def random_batch(schema: Schema, batch_size: int, *, seed: int, longest: int = 6) -> Batch:
    """`batch_size` samples with 0 to `longest` ids per feature, uniform; every sample has weight 1.

    Ids of scored features have weights of 1 or more. If there are such features, the ids of the
    others have weight 1.
    """
    draw = torch.Generator().manual_seed(seed)
    keys = list(schema.sparse_names)
    lengths = torch.randint(0, longest + 1, (len(keys), batch_size), generator=draw, device="cpu")
    values = [
        torch.randint(0, feature.num_ids, (int(count.sum()),), generator=draw, device="cpu")
        for feature, count in zip(schema.sparse, lengths, strict=True)
    ]
    return Batch(
        dense=torch.randn(batch_size, schema.dense_width, generator=draw, device="cpu"),
        features=KeyedJaggedTensor.from_lengths_sync(
            keys=keys,
            values=torch.cat([*values, torch.empty(0, dtype=torch.int64, device="cpu")]),
            lengths=lengths.flatten(),
            weights=_scores(schema, values),
        ),
        labels=torch.randint(
            0, 2, shape_of_labels(schema, batch_size), generator=draw, device="cpu"
        ).float(),
        weights=torch.ones(batch_size, device="cpu"),
    )


def _scores(schema: Schema, values: Sequence[Tensor]) -> Tensor | None:
    """The weight of each id, which depends only on the id; None if no feature is scored."""
    if not schema.weights_names:
        return None
    each = (
        1 + (ids % 3).float() if feature.scored else torch.ones(len(ids), device="cpu")
        for feature, ids in zip(schema.sparse, values, strict=True)
    )
    return torch.cat([*each])


def shape_of_labels(schema: Schema, batch_size: int) -> tuple[int, ...]:
    """[B], or [B, T] if there are T labels."""
    count = len(schema.targets)
    return (batch_size,) if count == 1 else (batch_size, count)


def random_batches(
    schema: Schema, *, steps: int, world_size: int = 2, batch_size: int = 16, longest: int = 6
) -> list[list[Batch]]:
    """Batches by step and rank, all different, and the same in every call."""
    return [
        [
            random_batch(schema, batch_size, seed=step * world_size + rank, longest=longest)
            for rank in range(world_size)
        ]
        for step in range(steps)
    ]


def random_table(
    folder: Path,
    schema: Schema,
    num_rows: int,
    *,
    rows_per_stripe: int = 64,
    row: str = "",
    seed: int = 0,
) -> Table:
    """A table of random samples in sessions of three; the ids of feature `row` count its rows."""
    batch = random_batch(schema, num_rows, seed=seed)
    numbers = torch.arange(num_rows, device="cpu")
    labels = batch.labels.reshape(num_rows, len(schema.label_names)).T.tolist()
    columns: dict[str, Any] = {**to_lists(batch.features)}
    columns |= zip(schema.label_names, labels, strict=True)
    widths = [schema.width(name) or 1 for name in schema.dense]
    for name, part in zip(schema.dense, batch.dense.split(widths, dim=1), strict=True):
        columns[name] = (part.squeeze(1) if schema.width(name) is None else part).tolist()
    for feature in schema.sparse:
        if feature.scored:
            ids: list[list[int]] = columns[feature.name]
            columns[feature.weights_name] = [[1 + one % 3 for one in row] for row in ids]
    if schema.sample_weight is not None:
        columns[schema.sample_weight] = (1 + numbers % 3).tolist()
    if schema.session_id is not None:
        columns[schema.session_id] = (numbers // 3).tolist()
    if schema.timestamp is not None:
        columns[schema.timestamp] = (numbers * 1000).tolist()
    if row:
        columns[row] = numbers.unsqueeze(1).tolist()
    arrow = schema.arrow()
    with TableWriter(folder, schema, rows_per_stripe=rows_per_stripe) as writer:
        writer.write(pa.table({name: columns[name] for name in arrow.names}, schema=arrow))
    return Table.open(folder)


def to_lists(features: KeyedJaggedTensor) -> dict[str, list[list[int]]]:
    """The ids of each row, by key."""
    return {
        key: [row.tolist() for row in features[key].to_dense()]
        for key in features.keys()  # noqa: SIM118  # a KJT is not a mapping
    }


def from_lists(lists: Mapping[str, Sequence[Sequence[int]]]) -> KeyedJaggedTensor:
    """The features from which `to_lists` would make these lists."""
    rows = [row for ids in lists.values() for row in ids]
    return KeyedJaggedTensor.from_lengths_sync(
        keys=list(lists),
        values=torch.tensor([id_ for row in rows for id_ in row], dtype=torch.int64, device="cpu"),
        lengths=torch.tensor([len(row) for row in rows], device="cpu"),
    )
