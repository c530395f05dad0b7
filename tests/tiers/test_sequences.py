"""Parity of EmbeddingCollections behind tiers: two and four gloo ranks, against a reference."""

from __future__ import annotations

import pytest
from tiered import (
    ByTiers,
    Sequences,
    all_meet,
    batch_of,
    drawn_batches,
    filled,
    odd_batches,
    tier_plan,
)

from recd_plugins.planning.tier_plans.tier_plan import Coalesce
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import TABLE_OPTIMIZERS, check_parity


def test_two_ranks_with_replicated_rows_train_as_row_wise_torchrec(gloo_pool: GlooPool) -> None:
    batches = [[batch_of(2 * step + rank, 6) for rank in range(2)] for step in range(4)]
    check_parity(
        gloo_pool,
        Sequences,
        batches,
        arrange=ByTiers(ranks_per_node=2, tiers="replicated"),
        reference=BySharding("row_wise"),
    )


@pytest.mark.parametrize(("seed", "coalesce"), [(0, "none"), (1, "none"), (2, "rank"), (4, "node")])
def test_any_rows_in_any_tier(gloo_pool: GlooPool, seed: int, coalesce: Coalesce) -> None:
    """Tiers and batches are drawn."""
    arrange = ByTiers(ranks_per_node=2, seed=seed, coalesce=coalesce)
    plan = tier_plan(arrange, n_nodes=2)
    batches = drawn_batches(plan, 4, seed)
    assert all_meet(batches, plan)
    check_parity(
        gloo_pool,
        Sequences,
        batches,
        arrange=arrange,
        reference_batches=filled(batches),
        tables=TABLE_OPTIMIZERS if seed < 2 else ["sgd"],
    )


@pytest.mark.parametrize(
    "arrange",
    [
        ByTiers(2, seed=7, coalesce="rank"),
        ByTiers(2, seed=7, coalesce="node"),
        ByTiers(4, tiers="none", coalesce="node"),
        ByTiers(2, tiers="none", coalesce="rank"),
        ByTiers(2, tiers="none"),
        ByTiers(1, seed=7),
        ByTiers(4, seed=7),
        ByTiers(2, seed=5, chunk_rows=4),
        ByTiers(2, seed=7, in_slots=True),
    ],
    ids=[
        "rank",
        "node",
        "node alone",
        "rank alone",
        "no tiers",
        "nodes of one",
        "one node",
        "many chunks",
        "in slots",
    ],
)
def test_each_way_to_the_rows(gloo_pool: GlooPool, arrange: ByTiers) -> None:
    check_parity(
        gloo_pool,
        Sequences,
        odd_batches(4),
        arrange=arrange,
        reference_batches=odd_batches(4, empty=False),
        tables=["sgd"],
    )
