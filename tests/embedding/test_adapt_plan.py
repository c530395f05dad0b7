"""Rung 1 (values): an adapted model is planned as it was, but for the samples that it looks up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from mixed import BAGS, GROUPS, SHARES, Mixed

from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.dedup import DedupEmbeddingBagCollection
from recd_plugins.embedding.sharded import DedupSharder, with_dedup
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.constraints import TableConstraint, parameter_constraints
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlanner,
    TorchRecPlannerConfig,
)


def planner(**options: Any) -> TorchRecPlanner:
    config = TorchRecPlannerConfig(search="greedy", **options)
    return TorchRecPlanner(config, device="cpu", batch_size=100, sharders=default_sharders)


@pytest.mark.parametrize("constraints", [{}, {"*": TableConstraint(sharding_types=("row_wise",))}])
def test_the_plan_is_that_of_the_model_as_it_was(
    constraints: Mapping[str, TableConstraint],
) -> None:
    if constraints:  # TorchRec offers no row-wise bags on CPU
        constraints = {"t_item": constraints["*"], "t_page": constraints["*"]}
    plans = [
        planner(constraints=constraints).propose(model, Topology(), 2)
        for model in (Mixed(), adapt(Mixed(), GROUPS))
    ]
    assert str(plans[0]) == str(plans[1])
    assert set(plans[0].plan["bags"]) == set(BAGS)


def test_features_count_the_samples_that_are_looked_up() -> None:
    model = adapt(Mixed(), GROUPS, unique_shares=SHARES)
    given = {"t_item": TableConstraint(pooling_factors=(20, 1))}
    found = parameter_constraints(model, given, planner().sharders(), "cpu", 100)
    assert {name: one.batch_sizes for name, one in found.items()} == {
        "t_profile": [20],
        "t_again": [20],
        "t_region": [90],
        "t_shop": [65],  # the mean of its features: TorchRec counts them as one
        "t_seller": None,
        "t_item": [30, 100],
        "t_page": [30],
        "t_word": None,
        "t_event": [30],
    }
    plain = parameter_constraints(Mixed(), {}, planner().sharders(), "cpu", 100)
    assert {one.batch_sizes for one in plain.values()} == {None}
    assert planner(constraints=given).propose(model, Topology(), 2).plan.keys() == {
        "bags",
        "sequences",
    }


def test_a_refusal_counts_the_adapted_tables() -> None:
    with pytest.raises(CapabilityError, match="do not fit on 2 ranks"):
        planner().propose(adapt(Mixed(), GROUPS), Topology(host_memory_gb=1e-9), 2)


def test_sharders_are_wrapped_once() -> None:
    inner = planner().sharders()
    every = with_dedup(with_dedup(inner))
    assert every[: len(inner)] == inner
    added = every[len(inner) :]
    assert [type(sharder) for sharder in added] == [DedupSharder, DedupSharder]
    bags = added[0]
    assert bags.module_type is DedupEmbeddingBagCollection
    assert bags.fused_params == inner[0].fused_params
    assert bags.sharding_types("cpu") == inner[0].sharding_types("cpu")
    assert bags.compute_kernels("row_wise", "cuda") == inner[0].compute_kernels("row_wise", "cuda")
    model = adapt(Mixed(), GROUPS)
    assert bags.shardable_parameters(model.bags).keys() == BAGS.keys()
