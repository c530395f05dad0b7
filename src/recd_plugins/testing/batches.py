"""Random batches of a schema, to train and to check on."""

from __future__ import annotations

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema

__all__ = ["random_batch", "random_batches"]


def random_batch(schema: Schema, batch_size: int, *, seed: int, longest: int = 6) -> Batch:
    """B samples with 0 to `longest` ids a feature, uniform; every weight is 1."""
    draw = torch.Generator().manual_seed(seed)
    keys = list(schema.sparse_names)
    lengths = torch.randint(0, longest + 1, (len(keys), batch_size), generator=draw)
    values = [
        torch.randint(0, feature.num_ids, (int(count.sum()),), generator=draw)
        for feature, count in zip(schema.sparse, lengths, strict=True)
    ]
    return Batch(
        dense=torch.randn(batch_size, len(schema.dense), generator=draw),
        features=KeyedJaggedTensor.from_lengths_sync(
            keys=keys,
            values=torch.cat([*values, torch.empty(0, dtype=torch.int64)]),
            lengths=lengths.flatten(),
        ),
        labels=torch.randint(0, 2, (batch_size,), generator=draw).float(),
        weights=torch.ones(batch_size),
    )


def random_batches(
    schema: Schema, *, steps: int, world_size: int = 2, batch_size: int = 16, longest: int = 6
) -> list[list[Batch]]:
    """Batches by step and rank, all different, alike in every call."""
    return [
        [
            random_batch(schema, batch_size, seed=step * world_size + rank, longest=longest)
            for rank in range(world_size)
        ]
        for step in range(steps)
    ]
