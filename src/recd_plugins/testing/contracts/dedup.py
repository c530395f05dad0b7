"""The `dedup` slot: deduplicated features can be expanded again, row for row."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import JoinedColumns, PooledColumns
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.sparse.jagged import Jagged, slice_rows, without
from recd_plugins.sparse.rows.pool import Picked
from recd_plugins.testing.batches import from_lists, random_batch, to_lists
from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_dedup"]

DRAWN = 6
"""The number of random samples in a batch, besides those that are nearly equal."""


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
        batch = _batch(schema, seed)
        separate = [key for key in schema.sparse_names if key in taken]
        rest = dataclasses.replace(batch, features=without(batch.features, separate))
        # As any reader hands them over, and as a reader does that has numbered the different rows.
        beside = {name: torch.arange(len(batch), device="cpu") // 3 for name in transform.asks}
        joined = JoinedColumns(without(batch.features, rest.features.keys()), beside)
        for columns in (joined if beside else None, _pooled(batch, separate, beside)):
            converted = transform(batch if columns is None else rest, columns)
            found = to_lists(_expand(subject, converted)) if taken else {}
            found |= to_lists(converted.features)
            for key, rows in to_lists(batch.features).items():
                subject.hold(
                    found.get(key) == rows,
                    f"every row of {key!r} must come back through expand, but they differ",
                    "Take no feature that is not in `groups`; check the inverse lookup; compare "
                    "all ids of all features of a group, for these rows are nearly equal.",
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


def _pooled(batch: Batch, keys: Sequence[str], beside: Mapping[str, Tensor]) -> PooledColumns:
    """The features as the local reader holds them, with samples from two windows."""
    parts = []
    for start, stop in ((0, 10), (10, len(batch))):
        jagged = slice_rows(batch.features, start, stop).to_dict()
        columns = [[Jagged(jagged[key].values(), jagged[key].lengths())] for key in keys]
        parts.append(Picked.of(columns, np.arange(stop - start)))
    return PooledColumns(keys, parts, beside)


def _nearly_equal(schema: Schema) -> Iterator[dict[str, list[int]]]:
    """Samples that a converter may mistake for each other.

    Each differs from the first in one or two features, and in these as little as possible.
    """
    first = {feature.name: _ids(feature, range(1, 7)) for feature in schema.sparse}
    yield first
    yield {name: [] for name in first}
    for feature in schema.sparse:
        for row in _variants(feature):
            yield {**first, feature.name: row}
    for one, other in itertools.pairwise(schema.sparse):
        ids, others = first[one.name], first[other.name]
        # The concatenated ids of a group are the same, and so is their sum.
        yield {**first, one.name: [*ids, 1], other.name: others}
        yield {**first, one.name: ids, other.name: [1, *others]}
        yield {**first, one.name: _ids(one, [2]), other.name: _ids(other, [3])}
        yield {**first, one.name: _ids(one, [3]), other.name: _ids(other, [2])}


def _variants(feature: SparseFeature) -> Iterator[list[int]]:
    """Rows of a feature, each a little different from 1, 2, 3, 4, 5, 6 or from a long row."""
    yield from ([], [0], [0, 0], _ids(feature, [1]))
    ids = list(range(1, 7))
    for row in (
        [1, 2, 3, 5, 5, 6],  # one id
        [1, 2, 4, 3, 5, 6],  # the order; sum, set, first and last ids are the same
        [1, 1, 4, 4, 5, 6],  # two ids; length, sum, first and last ids are the same
        [0, 2, 3, 4, 5, 6],  # the first
        [1, 2, 3, 4, 5, 0],  # the last
        ids[::-1],
        ids[1:],
        ids[:-1],
        [*ids, 0],
        [*ids, 6],  # the set is the same
        [*ids, *ids],
    ):
        yield _ids(feature, row)
    long = [*ids] * 20
    for at in (0, 60, 119):
        yield _ids(feature, [*long[:at], 0, *long[at + 1 :]])
    yield _ids(feature, long)


def _ids(feature: SparseFeature, ids: Iterable[int]) -> list[int]:
    return [id_ % feature.num_ids for id_ in ids]


def _batch(schema: Schema, seed: int) -> Batch:
    """Samples that are nearly equal and random ones, each twice, in an order drawn by the seed."""
    drawn = to_lists(random_batch(schema, DRAWN, seed=seed).features)
    samples = [{key: rows[at] for key, rows in drawn.items()} for at in range(DRAWN)]
    samples = [*samples, *_nearly_equal(schema)] * 2
    order = torch.randperm(
        len(samples), generator=torch.Generator().manual_seed(seed), device="cpu"
    ).tolist()
    return Batch(
        dense=torch.zeros(len(samples), schema.dense_width, device="cpu"),
        features=from_lists({key: [samples[at][key] for at in order] for key in drawn}),
        labels=torch.zeros(len(samples), device="cpu"),
        weights=torch.ones(len(samples), device="cpu"),
    )
