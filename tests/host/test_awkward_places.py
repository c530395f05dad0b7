"""Ladder: one or two ranks. The lines of docs/own-trainer.md, at awkward places in a trainer, are
each answered by what to write."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_own_loader import Pages, visits
from torch import nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.errors import CapabilityError, RecdError
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.gloo import GlooPool

CPU = torch.device("cpu")
GREEDY = {"search": "greedy"}
DEDUP: dict[str, Any] = {
    "plugins": ["recd_dedup"],
    "sharding": GREEDY,
    "dedup": {"use": "exact", "groups": [["pages"]]},
}


def method_as_a_plan() -> str:
    stack: Any = rp.load({"sharding": GREEDY})
    with pytest.raises(RecdError) as raised:
        DistributedModelParallel(nn.Linear(2, 1), device=CPU, plan=stack.plan, sharders=[])
    return str(raised.value)


def test_the_method_that_makes_a_plan_is_none(gloo_pool: GlooPool) -> None:
    (said,) = gloo_pool.run(method_as_a_plan, world_size=1)
    assert said == (
        "plan: is the method stack.plan itself, but must be what it returns. Write "
        "`plan=stack.plan(model, batches=loader)`."
    )


def planned_late() -> list[str]:
    stack, model = rp.load({**DEDUP, "dedup": {"use": "exact"}}), Pages()
    sharded = DistributedModelParallel(model, device=CPU)
    said = []
    for late in (sharded, model):
        for call in (stack.plan, stack.adapt):
            with pytest.raises(CapabilityError) as raised:
                call(late, batches=[])
            said.append(str(raised.value))
    half = nn.ModuleList([model, Pages()])
    assert stack.plan(half, batches=[]).plan.keys() == {"1.table"}
    return said


def test_a_model_that_is_sharded_already_is_refused(gloo_pool: GlooPool) -> None:
    """Also by itself, once it was sharded in place; but not one that has tables left."""
    (said,) = gloo_pool.run(planned_late, world_size=1)
    assert said == [
        f"stack.{call}: the model is sharded already, and has no tables left to shard. Pass the "
        "model itself, before DistributedModelParallel, which shards its modules in place."
        for call in ("plan", "adapt") * 2
    ]


def method_as_sharders() -> tuple[list[str], list[str]]:
    stack: Any = rp.load({"sharding": GREEDY})
    said = []
    with pytest.raises(RecdError) as raised:
        DistributedModelParallel(
            nn.Linear(2, 1), device=CPU, plan=ShardingPlan({}), sharders=stack.sharders
        )
    said.append(str(raised.value))
    with pytest.raises(RecdError) as raised:
        stack.plan(nn.Linear(2, 1), sharders=stack.sharders)
    said.append(str(raised.value))
    called = stack.sharders
    model = Pages()
    stack.plan(model, batches=[])
    return said, [called.__name__, str(inspect.signature(called)), type(called()).__name__]


def test_the_method_that_makes_sharders_is_none(gloo_pool: GlooPool) -> None:
    ((said, called),) = gloo_pool.run(method_as_sharders, world_size=1)
    assert set(said) == {
        "sharders: is the method stack.sharders itself, but must be what it returns. Write "
        "`sharders=stack.sharders()`."
    }
    assert called[0] == "sharders"
    assert called[1].startswith("(mine: ")
    assert called[2] == "list"


def test_a_stack_without_a_dataset_yields_no_batches() -> None:
    with pytest.raises(CapabilityError, match=r"^stack\.loader: registry\.yaml has no `dataset`"):
        rp.load({"sharding": GREEDY}).loader(0, 2)


def moved_before_a_plan() -> tuple[str, str]:
    """Replicas that are to move before there are any."""
    group = dist.group.WORLD
    assert group is not None
    registry = {"plugins": ["recd_flexshard"], "sharding": {"use": "flexshard"}}
    stack = rp.load(registry)
    batch: Any = next(visits(0))
    with pytest.raises(CapabilityError) as raised:
        stack.retiering_planner().retier([batch], group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)  # on one rank nothing pays
        stack.plan(Pages(), batches=[batch] * 2)
    stack.retiering_planner().retier([batch], group)
    return str(raised.value), stack.explain()


def test_replicas_move_once_there_is_a_plan(gloo_pool: GlooPool) -> None:
    ((said, explained),) = gloo_pool.run(moved_before_a_plan, world_size=1)
    assert said.startswith("sharding: flexshard: replicas were to move before there is a plan")
    assert "Call `plan = stack.plan(model, ...)`" in said
    assert explained


def adapted(when: str) -> list[str]:
    """What is said where a model is adapted before its plan, or after it."""
    stack, model = rp.load(DEDUP), Pages()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if when == "before":
            stack.adapt(model)
        plan = stack.plan(model)
        if when == "after":
            stack.adapt(model)
        sharded = DistributedModelParallel(
            model, device=CPU, plan=plan, sharders=stack.sharders(), init_data_parallel=False
        )
        sharded(features=stack.convert(next(visits(0)).pages))
    return [str(one.message) for one in caught if one.category is NoticeWarning]


def test_a_model_that_is_adapted_after_its_plan_is_told(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(adapted, "before", world_size=1) == [[]]
    ((said,),) = gloo_pool.run(adapted, "after", world_size=1)
    assert said == (
        "dedup: exact gains less than it could: stack.adapt comes after stack.plan, so that the "
        "plan counts all samples. Write `model = stack.adapt(model)` before "
        "`plan = stack.plan(model, ...)`."
    )


class OfBatches(nn.Module):
    """Takes a batch of pages alone, as pipelines call it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Pages()

    def forward(self, batch: Any) -> Any:
        return self.inner(batch), ()


def traced_unsharded() -> str:
    """An adapted model that DistributedModelParallel leaves as it is, in TorchRec's pipeline."""
    model: Any = rp.load(DEDUP).adapt(OfBatches())
    sharded = DistributedModelParallel(
        model, device=CPU, plan=ShardingPlan({}), init_data_parallel=False
    )
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    pipeline: Any = TrainPipelineSparseDist(sharded, optimizer, CPU)
    with pytest.raises(CapabilityError) as raised:
        pipeline.progress(iter([next(visits(0)).pages]))
    return str(raised.value)


def test_an_adapted_model_that_nobody_shards_cannot_be_traced(gloo_pool: GlooPool) -> None:
    (said,) = gloo_pool.run(traced_unsharded, world_size=1)
    assert said.startswith("stack.adapt: a pipeline traces the model")
    assert "sharders=stack.sharders())`, with `plan = stack.plan(model, ...)`" in said


def trained_without_a_plan(plans: bool, registry: dict[str, Any], steps: int) -> list[str]:
    """An adapted model that trains, by a plan of the stack or as it is."""
    stack = rp.load(registry)
    model: Any = stack.adapt(Pages())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan, given = None, {}
        if plans:
            plan, given = stack.plan(model), {"sharders": stack.sharders()}
        sharded = DistributedModelParallel(
            model, device=CPU, plan=plan, init_data_parallel=False, **given
        )
        for _ in range(steps):
            sharded(features=stack.convert(next(visits(0)).pages))
    return [str(one.message) for one in caught if one.category is NoticeWarning]


def test_a_planner_that_no_adapted_model_asks_is_told(gloo_pool: GlooPool) -> None:
    """Once it surely trains, and only where registry.yaml names a planner."""
    ((said,),) = gloo_pool.run(trained_without_a_plan, False, DEDUP, 4, world_size=1)
    assert said.startswith(
        "sharding: torchrec is not used: this trainer asks for no plan: it never calls stack.plan. "
        "Write `plan = stack.plan(model, batches=loader)` and `DistributedModelParallel(model, "
    )
    unnamed = {key: value for key, value in DEDUP.items() if key != "sharding"}
    for plans, registry, steps in ((False, unnamed, 4), (False, DEDUP, 2), (True, DEDUP, 4)):
        assert gloo_pool.run(trained_without_a_plan, plans, registry, steps, world_size=1) == [[]]


class TwoCollections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = bags("a"), bags("b")

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        found: torch.Tensor = self.first(features)["a"].sum() + self.second(features)["b"].sum()
        return found


def bags(name: str) -> EmbeddingBagCollection:
    config = EmbeddingBagConfig(
        name=f"t_{name}", embedding_dim=16, num_embeddings=40, feature_names=[name]
    )
    return EmbeddingBagCollection(tables=[config], device=torch.device("meta"))


def by_its_plan(whose: str, names: bool) -> list[str]:
    """What is said where DistributedModelParallel has the stack's plan, its own, or both."""
    columns = {"*": {"sharding_types": ["column_wise"], "min_partition": 8}}
    registry = {"sharding": {**GREEDY, "constraints": columns}} if names else {}
    stack, model = rp.load(registry), TwoCollections()
    ids = KeyedJaggedTensor(["a", "b"], torch.arange(8), lengths=torch.ones(8, dtype=torch.int64))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan: Any = stack.plan(model)
        group = dist.group.WORLD
        assert group is not None
        own = EmbeddingShardingPlanner(topology=Topology(2, "cpu"))
        if whose == "DistributedModelParallel's":
            plan = own.collective_plan(model, stack.sharders(), group)
        elif whose == "in part the trainer's":
            mine = own.collective_plan(model, stack.sharders(), group)
            plan = ShardingPlan({**plan.plan, "first": mine.plan["first"]})
        sharded = DistributedModelParallel(
            model, device=CPU, plan=plan, sharders=stack.sharders(), init_data_parallel=False
        )
        sharded(ids)
    return [str(one.message) for one in caught if one.category is NoticeWarning]


def test_a_plan_that_nobody_carries_out_is_told(gloo_pool: GlooPool) -> None:
    said, nothing = gloo_pool.run(by_its_plan, "DistributedModelParallel's", True)
    assert nothing == []
    assert said == [
        "sharding: torchrec is not used: the model was sharded by another plan, which has table "
        "t_a data_parallel in place of column_wise, table t_b data_parallel in place of "
        "column_wise. Hand DistributedModelParallel what stack.plan returned: `plan=plan`."
    ]
    assert gloo_pool.run(by_its_plan, "DistributedModelParallel's", False) == [[], []]
    assert gloo_pool.run(by_its_plan, "in part the trainer's", True) == [[], []]
    assert gloo_pool.run(by_its_plan, "the stack's", True) == [[], []]
