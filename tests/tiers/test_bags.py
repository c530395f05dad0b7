"""Parity of EmbeddingBagCollections behind tiers: two and four gloo ranks, against a reference."""

from __future__ import annotations

import pytest
from tiered import Bags, ByTiers, all_meet, batch_of, drawn_batches, filled, tier_plan

from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import TABLE_OPTIMIZERS, check_parity


def test_two_ranks_train_as_row_wise_torchrec(gloo_pool: GlooPool) -> None:
    batches = [[batch_of(2 * step + rank, 6) for rank in range(2)] for step in range(4)]
    check_parity(
        gloo_pool,
        Bags,
        batches,
        arrange=ByTiers(ranks_per_node=2),
        reference=BySharding("row_wise"),
    )


@pytest.mark.parametrize("seed", range(2))
def test_any_rows_in_any_tier(gloo_pool: GlooPool, seed: int) -> None:
    """Tiers and batches are drawn."""
    arrange = ByTiers(ranks_per_node=2, seed=seed)
    plan = tier_plan(arrange, n_nodes=2)
    batches = drawn_batches(plan, 4, seed)
    assert all_meet(batches, plan)
    check_parity(
        gloo_pool,
        Bags,
        batches,
        arrange=arrange,
        reference_batches=filled(batches),
        tables=TABLE_OPTIMIZERS if seed == 0 else ["sgd"],
    )
