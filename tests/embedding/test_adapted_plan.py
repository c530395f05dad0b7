"""Ladder: values, and two ranks. Who shards an adapted model without the stack's sharders is told
so, where TorchRec has a KeyError of a class."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from mixed import GROUPS, Mixed
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

import recd_plugins as rp
from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.adapted_plan import AdaptedPlan
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlanner,
    TorchRecPlannerConfig,
)
from recd_plugins.testing.gloo import GlooPool


def test_only_an_adapted_collection_is_refused_and_only_without_its_sharders() -> None:
    model = adapt(Mixed(), GROUPS)
    model.plain = nn.ModuleDict({"bags": bags()})
    config = TorchRecPlannerConfig(search="greedy")
    planner = TorchRecPlanner(config, device="cpu", batch_size=100, sharders=default_sharders)
    plan, asked = planner.propose(model, Topology(), 2), [False]
    adapted = AdaptedPlan.of(plan, model, lambda: asked[0])
    assert adapted.get_plan_for_module("over") is None
    assert adapted.get_plan_for_module("plain.bags") is plan.plan["plain.bags"]
    for path in ("bags", "sequences"):
        with pytest.raises(CapabilityError, match="looked up in bags, sequences since"):
            adapted.get_plan_for_module(path)
    copies = [copy.deepcopy(adapted), pickle.loads(pickle.dumps(adapted))]
    assert [type(one) for one in copies] == [ShardingPlan] * 2
    assert str(copies[1]) == str(adapted) == str(plan)
    asked[0] = True
    assert adapted.get_plan_for_module("bags") is plan.plan["bags"]
    adapted.plan["bags"] = plan.plan["sequences"]  # a trainer's own plan of a module
    assert plan.get_plan_for_module("bags") is adapted.get_plan_for_module("bags")


def bags() -> EmbeddingBagCollection:
    config = EmbeddingBagConfig(
        name="t", embedding_dim=8, num_embeddings=50, feature_names=["pages"]
    )
    return EmbeddingBagCollection(tables=[config], device=torch.device("meta"))


def sharded(whose: str) -> str:
    """What DistributedModelParallel says of these sharders."""
    stack = rp.load(
        {
            "plugins": ["recd_dedup"],
            "sharding": {"search": "greedy"},
            "dedup": {"use": "exact", "groups": [["pages"]]},
        }
    )
    model: Any = stack.adapt(bags() if whose == "of the collection alone" else Around())
    plan = stack.plan(model)
    given: dict[str, Any] = {"device": torch.device("cpu"), "plan": plan}
    if whose == "TorchRec's":
        given["sharders"] = get_default_sharders()
    elif whose == "the stack's":
        given["sharders"] = stack.sharders()
    elif whose == "the trainer's by the stack":
        given["sharders"] = stack.sharders(get_default_sharders())
    try:
        DistributedModelParallel(model, init_data_parallel=False, **given)
    except CapabilityError as error:
        return str(error)
    return "sharded"


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = bags()


@pytest.mark.parametrize("whose", ["TorchRec's", "none", "of the collection alone"])
def test_sharders_of_others_are_refused_by_what_they_lack(gloo_pool: GlooPool, whose: str) -> None:
    first, second = gloo_pool.run(sharded, whose)
    assert first == second
    where = "the model" if whose == "of the collection alone" else "bags"
    assert first.startswith(f"stack.plan: unique samples are looked up in {where} since stack.ad")
    assert "sharders=stack.sharders())`, or `stack.sharders(mine)` of sharders of yours" in first


@pytest.mark.parametrize("whose", ["the stack's", "the trainer's by the stack"])
def test_the_stacks_sharders_take_it(gloo_pool: GlooPool, whose: str) -> None:
    assert gloo_pool.run(sharded, whose) == ["sharded"] * 2
