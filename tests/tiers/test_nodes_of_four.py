"""Two nodes of four ranks: eight gloo ranks behind tiers, against an unsharded reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiered import Bags, ByTiers, Sequences, all_meet, drawn_batches, filled, tier_plan
from torch import nn

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity


@pytest.mark.parametrize(
    ("model", "arrange"),
    [
        (Sequences, ByTiers(ranks_per_node=4, seed=3)),
        (Sequences, ByTiers(ranks_per_node=4, seed=5, coalesce="node")),
        (Bags, ByTiers(ranks_per_node=4, seed=4)),
    ],
    ids=["sequences", "coalesced", "bags"],
)
def test_any_rows_in_any_tier(
    gloo_pool: GlooPool, model: Callable[[], nn.Module], arrange: ByTiers
) -> None:
    plan = tier_plan(arrange, n_nodes=2)
    batches = drawn_batches(plan, 8, arrange.seed)
    assert all_meet(batches, plan)
    check_parity(
        gloo_pool,
        model,
        batches,
        arrange=arrange,
        reference_batches=filled(batches),
        tables=["sgd"],
    )
