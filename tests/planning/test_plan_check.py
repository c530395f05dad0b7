"""Value tests: a plan that does not fit its model is told with the planner's name, and by what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan

from recd_plugins.errors import PluginError
from recd_plugins.planning.plan_check import check_plan

SHARDERS = get_default_sharders()


def model() -> nn.Module:
    """Two tables."""
    size: dict[str, Any] = {"embedding_dim": 4, "num_embeddings": 9}
    tables = [EmbeddingBagConfig(name=name, feature_names=[name], **size) for name in ("a", "b")]
    return nn.ModuleDict({"bags": EmbeddingBagCollection(tables=tables)})


def plan_of(made: nn.Module) -> ShardingPlan:
    """TorchRec's, table-wise with the fused kernel."""
    fused = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
    topology, constraints = Topology(1, "cpu"), {"a": fused, "b": fused}
    return EmbeddingShardingPlanner(topology=topology, constraints=constraints).plan(made, SHARDERS)


def planned(change: Callable[[dict[str, Any]], object]) -> str:
    """What is said of a plan of TorchRec's that was changed."""
    made = model()
    plan = plan_of(made)
    change(plan.plan)
    with pytest.raises(PluginError) as caught:
        check_plan(plan, made, SHARDERS, 1, "P returned")
    return str(caught.value)


def sized(plan: dict[str, Any]) -> None:
    plan["bags"]["a"].sharding_spec.shards[0].shard_sizes[0] = 1


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "module": (
        lambda plan: plan.update(bag=plan["bags"]),
        "P returned a plan of module 'bag', which the model has not; did you mean 'bags'?",
    ),
    "text": (lambda plan: plan.update(bags="abc"), "P returned 'abc' for module 'bags', where"),
    "unknown": (
        lambda plan: plan["bags"].update(c=plan["bags"]["a"]),
        "a place for table 'c', which module 'bags' has not",
    ),
    "left out": (lambda plan: plan["bags"].pop("b"), "no place for table b of module 'bags'."),
    "nothing": (lambda plan: plan["bags"].update(a=None), "for table 'a' of 'bags' None, where"),
    "kind": (
        lambda plan: setattr(plan["bags"]["a"], "sharding_type", "row_wize"),
        "sharding_type 'row_wize'; did you mean 'row_wise'?",
    ),
    "kernel": (
        lambda plan: setattr(plan["bags"]["a"], "compute_kernel", "warp"),
        "compute_kernel 'warp'; ",
    ),
    "no shards": (
        lambda plan: setattr(plan["bags"]["a"], "sharding_spec", None),
        "table_wise without `ranks` and a `sharding_spec` of shards.",
    ),
    "no ranks": (
        lambda plan: setattr(plan["bags"]["a"], "ranks", None),
        "table_wise without `ranks`",
    ),
    "rank": (
        lambda plan: setattr(plan["bags"]["a"], "ranks", [7]),
        "rank 7, and there are 1 ranks from 0. Plan for `group.size()`.",
    ),
    "size": (sized, "shards that hold 4 numbers, and the table has 9 x 4."),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(name: str) -> None:
    change, says = WRONG[name]
    assert says in planned(change)


def test_torchrecs_own_plan_fits() -> None:
    made = model()
    check_plan(plan_of(made), made, SHARDERS, 1, "P returned")
    check_plan(ShardingPlan({}), made, SHARDERS, 1, "P returned")  # every rank has all of it
