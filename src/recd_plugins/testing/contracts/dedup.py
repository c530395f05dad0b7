"""The `dedup` slot: what is deduplicated comes back, row for row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import PooledColumns
from recd_plugins.data.transform import BatchTransform
from recd_plugins.sparse.jagged import Jagged, slice_rows
from recd_plugins.sparse.rows.pool import Picked
from recd_plugins.sparse.rows.weighted import without
from recd_plugins.testing.batches import from_lists, random_batch, to_lists
from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_dedup"]


def check_dedup(subject: Subject) -> None:
    schema = subject.context.require_schema()
    converter = subject.build()
    groups = tuple(map(tuple, converter.groups))
    taken = [key for group in groups for key in group]
    subject.hold(
        len(set(taken)) == len(taken) and set(taken) <= set(schema.sparse_names),
        f"its `groups` must name features of the schema, each in one group, but are {groups!r}",
        f"Check them in build; known are {', '.join(schema.sparse_names)}.",
    )
    transform = BatchTransform([], converter)
    for seed in range(3):
        batch = _repetitive(random_batch(schema, 6, seed=seed), seed)
        apart = [key for key in schema.sparse_names if key in taken]
        rest = dataclasses.replace(batch, features=without(batch.features, apart))
        # As any reader hands them over, and as one does that has told equal rows apart.
        for converted in (transform(batch), transform(rest, _pooled(batch, apart))):
            found = to_lists(_expand(subject, converted)) if taken else {}
            found |= to_lists(converted.features)
            for key, rows in to_lists(batch.features).items():
                subject.hold(
                    found.get(key) == rows,
                    f"every row of {key!r} must come back through expand, but they differ",
                    "Take no feature that is not in `groups`; check the inverse lookup.",
                )


def _expand(subject: Subject, batch: Batch) -> KeyedJaggedTensor:
    if subject.expand is not None:
        return subject.expand(batch)
    to_kjt = getattr(batch.dedup, "to_kjt", None)
    subject.hold(
        to_kjt is not None,
        f"what it puts into batch.dedup ({type(batch.dedup).__name__}) must have `to_kjt()`",
        "Add it, or hand check_record an `expand` from the batch to its KeyedJaggedTensor.",
    )
    assert to_kjt is not None
    expanded: KeyedJaggedTensor = to_kjt()
    return expanded


def _pooled(batch: Batch, keys: Sequence[str]) -> PooledColumns:
    """The features as the local reader holds them, the samples from two windows."""
    parts = []
    for start, stop in ((0, 10), (10, len(batch))):
        jagged = slice_rows(batch.features, start, stop).to_dict()
        columns = [[Jagged(jagged[key].values(), jagged[key].lengths())] for key in keys]
        parts.append(Picked.of(columns, np.arange(stop - start)))
    return PooledColumns(keys, parts)


def _repetitive(batch: Batch, seed: int) -> Batch:
    """24 samples, each one of the batch's, so that rows repeat within features and across."""
    chosen = torch.randint(0, len(batch), (24,), generator=torch.Generator().manual_seed(seed))
    lists = to_lists(batch.features)
    return Batch(
        dense=batch.dense[chosen],
        features=from_lists({key: [ids[row] for row in chosen] for key, ids in lists.items()}),
        labels=batch.labels[chosen],
        weights=batch.weights[chosen],
    )
