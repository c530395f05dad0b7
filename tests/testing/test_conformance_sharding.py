"""Ladder: two gloo ranks. Planners: each rule broken once is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from contract_records import Rate, broken, record
from torch import nn
from torch.distributed import ProcessGroup
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlanner,
    TorchRecPlannerConfig,
)
from recd_plugins.slots import (
    CacheRecord,
    Context,
    DedupRecord,
    Reader,
    ReaderRecord,
    ShardingRecord,
)
from recd_plugins.testing.conformance import check_record
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import SCHEMA

# sharding: its records travel to ranks, so they are built by functions of this module


class Forgetful(TorchRecPlanner):
    """Leaves a table out of its plan."""

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        plan = super().plan(model, topology, group)
        plan.plan["bags"].pop("shop")
        return plan


class Mute(TorchRecPlanner):
    def explain(self) -> str:
        return ""


class Hasty(TorchRecPlanner):
    """Trains its tables at twice the rate."""

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        first: Any = super().sharders()[0]
        rate = first.fused_params["learning_rate"]
        return default_sharders({**first.fused_params, "learning_rate": 2 * rate})


def build_planner(kind: type[TorchRecPlanner], context: Context) -> TorchRecPlanner:
    return kind(TorchRecPlannerConfig(), device="cpu", batch_size=16, sharders=context.sharders)


def build_forgetful(config: Rate, context: Context) -> TorchRecPlanner:
    return build_planner(Forgetful, context)


def build_mute(config: Rate, context: Context) -> TorchRecPlanner:
    return build_planner(Mute, context)


def build_hasty(config: Rate, context: Context) -> TorchRecPlanner:
    return build_planner(Hasty, context)


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (build_forgetful, "the plan must place every table, but leaves out ['shop']"),
        (build_mute, "explain must say in words"),
        (build_hasty, "training with its plan must equal training unsharded"),
    ],
)
def test_a_sharding_that_breaks_a_rule_is_reported_with_the_rule(
    gloo_pool: GlooPool, build: Callable[[Rate, Context], TorchRecPlanner], rule: str
) -> None:
    sharding = ShardingRecord(name="mine", summary="Mine.", config=Rate, build=build)
    assert rule in broken(sharding, pool=gloo_pool)


def test_a_record_declares_whether_its_planner_gives_rows_replicas(gloo_pool: GlooPool) -> None:
    sharding = ShardingRecord(
        name="mine", summary="Mine.", config=Rate, build=build_mute, tiers=True
    )
    assert "Declare `tiers=False`" in broken(sharding, pool=gloo_pool)


def test_a_sharding_needs_ranks() -> None:
    assert "check_record(record, pool=gloo_pool)" in broken(record(ShardingRecord, object))


# neighbours: what a record uses is there, though nobody gave it


def build_in_front(config: Rate, context: Context) -> TorchRecPlanner:
    """A cache that plans as the sharding slot's planner does, whom it finds in its context."""
    planner = context.require_others()
    assert isinstance(planner, TorchRecPlanner)
    assert context.batches is not None
    assert next(iter(context.batches())).features.keys()
    return planner


def test_a_cache_is_given_a_planner_to_stand_in_front_of(gloo_pool: GlooPool) -> None:
    cache = CacheRecord(name="mine", summary="Mine.", config=Rate, build=build_in_front)
    check_record(cache, pool=gloo_pool)


def test_what_is_given_comes_before_what_the_kit_has() -> None:
    mine = object()
    built: list[Context] = []

    def build(config: Rate, context: Context) -> Reader:
        built.append(context)
        return build_local_reader(LocalReaderConfig(prefetch=False), context)

    uses = ("sharding", "pooling", "preprocess", "model", "dedup")
    given = Context(schema=SCHEMA, neighbours={"sharding": mine})
    reader = ReaderRecord(name="mine", summary="Mine.", config=Rate, build=build, uses=uses)
    check_record(reader, context=given)
    neighbours = built[0].neighbours
    assert neighbours.keys() == set(uses)
    assert neighbours["sharding"] is mine
    assert neighbours["preprocess"] == []
    assert isinstance(neighbours["model"], nn.Module)
    pooled = neighbours["pooling"]["*"](2)(torch.ones(3, 2), torch.tensor([2, 0, 1]))
    assert pooled.tolist() == [[2, 2], [0, 0], [1, 1]]
    check_record(record(DedupRecord, lambda: neighbours["dedup"]))


def test_a_neighbour_that_the_kit_lacks_is_asked_for() -> None:
    with pytest.raises(CapabilityError, match=r"uses the slot 'log', .*neighbours={'log'"):
        check_record(record(ReaderRecord, object, uses=("log",)))
