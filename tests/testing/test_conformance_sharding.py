"""Ladder: two gloo ranks. Planners: each rule broken once is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from contract_records import Rate, broken, record
from torch import nn
from torch.distributed import ProcessGroup
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from recd_plugins.planning.plan import TorchRecPlanner, TorchRecPlannerConfig
from recd_plugins.planning.topology import Topology
from recd_plugins.slots import Context, ShardingRecord
from recd_plugins.testing.gloo import GlooPool

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
        self._fused = {**self._fused, "learning_rate": 2 * self._fused["learning_rate"]}
        return super().sharders()


def build_planner(kind: type[TorchRecPlanner], context: Context) -> TorchRecPlanner:
    return kind(TorchRecPlannerConfig(), device="cpu", batch_size=16, fused=context.fused)


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
def test_a_sharding_that_breaks_a_rule_is_told_which(
    gloo_pool: GlooPool, build: Callable[[Rate, Context], TorchRecPlanner], rule: str
) -> None:
    sharding = ShardingRecord(name="mine", summary="Mine.", config=Rate, build=build)
    assert rule in broken(sharding, pool=gloo_pool)


def test_a_sharding_needs_ranks() -> None:
    assert "check_record(record, pool=gloo_pool)" in broken(record(ShardingRecord, object))
