"""Parity of pooled tables whose rows travel: two and four gloo ranks, against a reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tiered import Bags, ByTiers, Sequences, SomeRows, batch_of, odd_batches
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import TABLE_OPTIMIZERS, check_parity


def weighted(batch: Batch) -> Batch:
    """The batch, each id with a weight of its own."""
    features = batch.features
    draw = torch.Generator().manual_seed(len(features.values()))
    features = KeyedJaggedTensor(
        keys=features.keys(),
        values=features.values(),
        lengths=features.lengths(),
        weights=0.5 + torch.rand(len(features.values()), generator=draw),
    )
    return dataclasses.replace(batch, features=features)


def strided(batch: Batch) -> Batch:
    """The batch, its ids and lengths each a column of a wider tensor."""
    features = batch.features
    ids, lengths = (
        torch.stack([one, torch.full_like(one, 7)], dim=1)[:, 0]
        for one in (features.values(), features.lengths())
    )
    features = KeyedJaggedTensor(keys=features.keys(), values=ids, lengths=lengths)
    return dataclasses.replace(batch, features=features)


def test_two_ranks_train_as_row_wise_torchrec(gloo_pool: GlooPool) -> None:
    batches = [[batch_of(2 * step + rank, 6) for rank in range(2)] for step in range(4)]
    check_parity(
        gloo_pool,
        Bags,
        batches,
        arrange=ByTiers(ranks_per_node=2, tiers="none", coalesce="rank"),
        reference=BySharding("row_wise"),
    )


@pytest.mark.parametrize(
    "arrange",
    [
        ByTiers(2, seed=0, coalesce="rank"),
        ByTiers(2, seed=1, coalesce="node"),
        ByTiers(4, seed=2, tiers="replicated", coalesce="rank"),
        ByTiers(4, seed=4, tiers="none", coalesce="node"),
    ],
    ids=["rank", "node", "one node, replicated", "node alone"],
)
def test_any_rows_in_any_tier(gloo_pool: GlooPool, arrange: ByTiers) -> None:
    check_parity(
        gloo_pool,
        Bags,
        odd_batches(4),
        arrange=arrange,
        reference_batches=odd_batches(4, empty=False),
        tables=TABLE_OPTIMIZERS if arrange.seed == 0 else ["sgd"],
    )


@pytest.mark.parametrize(
    ("arrange", "world_size"),
    [
        (SomeRows("songs"), 2),
        (SomeRows("artists", ranks_per_node=2, seed=1, coalesce="node"), 4),
        (SomeRows("songs", seed=2, sums="column_wise", tiers="none"), 2),
        (SomeRows("artists", seed=3, sums="row_wise"), 2),
    ],
    ids=["beside table-wise", "by node", "beside column-wise", "beside replicas of sums"],
)
def test_rows_of_one_table_and_sums_of_the_other(
    gloo_pool: GlooPool, arrange: SomeRows, world_size: int
) -> None:
    """The tables share a feature, and one of them takes the mean."""
    batches = [
        [batch_of(world_size * step + rank, 6) for rank in range(world_size)] for step in range(4)
    ]
    check_parity(
        gloo_pool, Bags, batches, arrange=arrange, reference=BySharding("row_wise"), tables=["sgd"]
    )


def test_weighted_bags(gloo_pool: GlooPool) -> None:
    batches = [[batch_of(2 * step + rank, 6) for rank in range(2)] for step in range(4)]
    check_parity(
        gloo_pool,
        partial(Bags, weighted=True),
        [[weighted(batch) for batch in step] for step in batches],
        arrange=ByTiers(2, seed=3, coalesce="rank"),
        reference=BySharding("row_wise"),
        # Plain torch takes no weights where tables take means.
        build_plain=Bags,
        tables=["sgd"],
    )


@pytest.mark.parametrize("build", [Bags, Sequences], ids=["bags", "sequences"])
def test_numbers_that_do_not_lie_side_by_side(
    gloo_pool: GlooPool, build: Callable[[], nn.Module]
) -> None:
    batches = [[batch_of(2 * step + rank, 6) for rank in range(2)] for step in range(4)]
    check_parity(
        gloo_pool,
        build,
        [[strided(batch) for batch in step] for step in batches],
        arrange=ByTiers(2, seed=3, coalesce="rank"),
        reference=BySharding("row_wise"),
        reference_batches=batches,
        tables=["sgd"],
    )
