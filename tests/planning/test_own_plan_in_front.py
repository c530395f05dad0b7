"""Ladder, two ranks: a trainer whose own plan goes before ours, for some tables or for all, is told
what then does nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import (
    ParameterShardingGenerator,
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.errors import CapabilityError
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.gloo import GlooPool

CPU = torch.device("cpu")
ON_RANK_0 = table_wise(rank=0, compute_kernel="fused")
ROWS = 400
REGISTRY: dict[str, Any] = {
    "plugins": ["recd_flexshard"],
    "sharding": {
        "use": "flexshard",
        "goal": "min_communication",
        "others": {"search": "greedy"},
    },
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.02},
}


class Model(nn.Module):
    """Two collections of a table each."""

    def __init__(self, device: str = "meta") -> None:
        super().__init__()
        self.first, self.second = (
            EmbeddingCollection(
                [
                    EmbeddingConfig(
                        name=f"t_{name}",
                        embedding_dim=16,
                        num_embeddings=ROWS,
                        feature_names=[name],
                    )
                ],
                device=torch.device(device),
            )
            for name in ("a", "b")
        )

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        found = [self.first(features)["a"].values(), self.second(features)["b"].values()]
        return torch.cat(found).square().sum()


def batches() -> list[KeyedJaggedTensor]:
    """Of which most ids are of the first rows."""
    draw = np.random.default_rng(dist.get_rank())
    lengths = torch.full((64,), 10)
    return [
        KeyedJaggedTensor(
            ["a", "b"], torch.from_numpy((draw.zipf(1.5, 640) - 1) % ROWS), lengths=lengths
        )
        for _ in range(4)
    ]


def trained(change: Callable[[Model, dict[str, Any]], object]) -> list[str]:
    """The notices of a training by a plan that the trainer has changed."""
    stack, model = rp.load(REGISTRY), Model("cpu" if change is leave_out else "meta")
    plan: Any = stack.plan(model, batches=batches())
    change(model, plan.plan)
    sharders = stack.sharders()
    sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=sharders)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for batch in batches():
            sharded(batch).backward()
    return [str(one.message) for one in found if one.category is NoticeWarning]


def nothing(model: Model, plan: dict[str, Any]) -> None: ...


def leave_out(model: Model, plan: dict[str, Any]) -> None:
    """The trainer's own, on every rank whole."""
    del plan["second"]


def place(model: Model, plan: dict[str, Any]) -> None:
    """The trainer's own, on rank 0."""
    plan["second"] = own_place(model.second)


def place_densely(model: Model, plan: dict[str, Any]) -> None:
    """The trainer's own, row-wise by the kernel that TorchRec takes where none is named."""
    plan["second"] = own_place(model.second, row_wise())


def own_place(module: nn.Module, way: ParameterShardingGenerator = ON_RANK_0) -> Any:
    size = {"local_size": 2, "world_size": 2, "device_type": "cpu"}
    return construct_module_sharding_plan(
        module, {"t_b": way}, EmbeddingCollectionSharder(), **size
    )


def both() -> tuple[list[str], list[str], list[str]]:
    """On a rank."""
    refused = []
    for change in (place, place_densely):
        with pytest.raises(CapabilityError) as caught:
            trained(change)
        refused.append(str(caught.value))
    return trained(nothing), trained(leave_out), refused


def test_tables_whose_tiers_a_trainers_plan_leaves_out_are_told(gloo_pool: GlooPool) -> None:
    (whole, in_part, refused), (*others, _) = gloo_pool.run(both)
    assert whole == []
    (said,) = in_part
    assert "sharding: flexshard is not used: the model was sharded without its sharders, or" in said
    assert "by another plan, so that no tiers are in front of table t_b." in said
    assert others == [[], []]
    whose = "table 't_b' has a tier plan, but TorchRec's plan "
    for message, told in zip(refused, ("shards it table_wise.", "gives it the dense"), strict=True):
        assert whose + told in message


def by_hand(registry: dict[str, Any]) -> list[str]:
    """On a rank: the notices of a trainer that asks for sharders, and not for a plan."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = Model("cpu")
        plan = ShardingPlan({"second": own_place(model.second)})
        sharders = rp.load(registry).sharders()
        sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=sharders)
        sharded(batches()[0]).backward()
    return [str(one.message) for one in found if one.category is NoticeWarning]


def test_a_planner_whose_plan_nobody_asks_for_is_told(gloo_pool: GlooPool) -> None:
    """Where registry.yaml names it, be it TorchRec's; not where it names none."""
    for sharding, name in ({"search": "greedy"}, "torchrec"), (REGISTRY["sharding"], "flexshard"):
        (said,), nothing = gloo_pool.run(by_hand, {**REGISTRY, "sharding": sharding})
        assert f"sharding: {name} is not used: stack.sharders() was asked before there is" in said
        assert nothing == []
    assert gloo_pool.run(by_hand, {}) == [[], []]
