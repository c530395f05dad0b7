"""Rung 3 (one, two, four gloo ranks): training on unique samples is training on all samples.

In every batch: other unique counts on each rank and for each group, features without ids, tables
shared by deduplicated and other features, several features a table, several tables a feature.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from itertools import product

import pytest
import torch
from mixed import Mixed, Sharded, batch_of, deduplicated, several

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import (
    TABLE_OPTIMIZERS,
    assert_parity,
    reference_of,
    train_and_gather,
)

SIZES = {1: [[9], [4], [7]], 2: [[9, 12], [12, 4], [5, 5]], 4: [[6, 3, 8, 5], [4, 7, 2, 9]]}
"""Batch sizes by world size, step and rank."""
DEADLINE = 300.0
"""Seconds for a dozen trainings, on a machine that is busy with others."""


def batches(sizes: Sequence[Sequence[int]], **options: object) -> list[list[Batch]]:
    return [
        [
            batch_of(size, unique=2 + (3 * step + rank) % 5, seed=10 * step + rank, **options)
            for rank, size in enumerate(of_step)
        ]
        for step, of_step in enumerate(sizes)
    ]


def unique(steps: Sequence[Sequence[Batch]], **options: bool) -> list[list[Batch]]:
    return [[deduplicated(batch, **options) for batch in step] for step in steps]


def settings(tables: str) -> OptimizerSettings:
    """An eps well above the noise of float32 sums: below it Adagrad turns noise into steps."""
    return OptimizerSettings(
        tables=tables, tables_lr=0.1, tables_eps=1e-4, dense="sgd", dense_lr=0.1
    )


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_losses_and_weights(gloo_pool: GlooPool, world_size: int) -> None:
    plain = batches(SIZES[world_size])
    kinds = ["row_wise", "table_wise", "column_wise", "mixed"]
    chosen = list(product(kinds, TABLE_OPTIMIZERS))
    if world_size != 2:
        chosen = [("row_wise", "rowwise_adagrad"), ("column_wise", "sgd"), ("mixed", "adagrad")]
    else:
        # Plain TorchRec, its reference, trains row-wise bags on gloo on even batches alone.
        chosen.remove(("mixed", "rowwise_adagrad"))
    calls = [(Mixed, unique(plain), Sharded(kind), settings(tables)) for kind, tables in chosen]
    references = {
        tables: reference_of(Mixed, plain, optimizer=settings(tables))
        for tables in TABLE_OPTIMIZERS
    }
    # TorchRec keeps a state of row-wise Adagrad for each column shard.
    split_bounds = reference_of(
        Mixed, plain, optimizer=settings("rowwise_adagrad"), column_shards=world_size
    ).bounds
    split = [i for i, one in enumerate(chosen) if one == ("column_wise", "rowwise_adagrad")]
    calls += [
        (Mixed, plain, Sharded(chosen[i][0], adapted=False), settings(chosen[i][1])) for i in split
    ]
    trained = gloo_pool.run(
        several, train_and_gather, calls, world_size=world_size, deadline=DEADLINE
    )[0]
    others = dict(zip(split, trained[len(chosen) :], strict=True))
    for index, (kind, tables) in enumerate(chosen):
        try:
            if index in others:
                assert_parity(trained[index], others[index], split_bounds)
            else:
                assert_parity(trained[index], *references[tables])
        except AssertionError as error:
            raise AssertionError(f"{kind}, {tables}: {error}") from None


UNCOUNTED = dataclasses.replace(batch_of(1, unique=1, seed=0), weights=torch.zeros(1))
"""What a batch without samples is to the loss; TorchRec, the reference, fails on these."""
WEIGHTED, MEAN = partial(Mixed, weighted=True), partial(Mixed, mean=True)


def test_whatever_batches_hold(gloo_pool: GlooPool) -> None:
    """Rank by rank no samples, no ids, weights, means; partial; all plain; now this, now that."""
    sizes = SIZES[2][:2]
    plain, weighted = batches(sizes), batches(sizes, weighted=True)
    no_samples, no_ids = batches([[9, 0], [0, 5]]), batches(sizes, longest=0)
    uncounted = [[batch if len(batch) else UNCOUNTED for batch in step] for step in no_samples]
    some_ids = [
        [b if (i + j) % 2 else e for j, (b, e) in enumerate(zip(p, n, strict=True))]
        for i, (p, n) in enumerate(zip(plain, no_ids, strict=True))
    ]
    by_turns = [unique([step])[0] if i % 2 else step for i, step in enumerate(plain)]
    cases = {
        "no samples": (Mixed, uncounted, unique(no_samples)),
        "no samples, plain": (Mixed, uncounted, no_samples),
        "no ids": (Mixed, some_ids, unique(some_ids)),
        "weights": (WEIGHTED, weighted, unique(weighted)),
        "means": (MEAN, plain, unique(plain)),
        "partial": (Mixed, plain, unique(plain, partial=True)),
        "partial with weights": (WEIGHTED, weighted, unique(weighted, partial=True)),
        "plain": (Mixed, plain, plain),
        "by turns": (Mixed, plain, by_turns),
    }
    sgd = settings("sgd")
    # Tables by turns row-, table- and column-wise: but TorchRec itself divides twice where
    # row-wise and other tables of one collection take means.
    runs = [(name, "mixed") for name in cases if name != "means"]
    runs += [("means", "row_wise"), ("means", "column_wise"), ("no samples", "row_wise")]
    calls = [(cases[name][0], cases[name][2], Sharded(kind), sgd) for name, kind in runs]
    trained = gloo_pool.run(several, train_and_gather, calls, deadline=DEADLINE)[0]
    references = {
        name: reference_of(build, theirs, optimizer=sgd)
        for name, (build, theirs, _) in cases.items()
    }
    for (name, kind), one in zip(runs, trained, strict=True):
        try:
            assert_parity(one, *references[name])
        except AssertionError as error:
            raise AssertionError(f"{name}, {kind}: {error}") from None
