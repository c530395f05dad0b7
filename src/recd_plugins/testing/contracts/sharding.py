"""The `sharding` and `cache` slots: a plan for every table that changes only where its rows
are."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn
from torchrec.distributed.types import ShardingPlan

from recd_plugins.config import Config
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.torchrec_plan.torchrec_planner import TorchRecPlannerConfig
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.slots import Context, Record, ShardingRecord
from recd_plugins.slots.built import check_built
from recd_plugins.testing.arrange import Arranged, tables_of
from recd_plugins.testing.batches import random_batches
from recd_plugins.testing.contracts.subject import ContractBroken, Subject
from recd_plugins.testing.gloo import RanksFailed
from recd_plugins.testing.neighbours import with_neighbours
from recd_plugins.testing.parity import check_parity
from recd_plugins.testing.probe import SCHEMA, Probe
from recd_plugins.tiers.planner.tier_planner import TierPlanner

__all__ = ["ByRecord", "check_sharding"]


@dataclass(frozen=True)
class ByRecord:
    """An arrangement by the planner that a record builds; raises if its plan is incomplete."""

    record: Record[Any, Any]
    config: Config
    context: Context
    others: TorchRecPlannerConfig

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        context = dataclasses.replace(self.context, fused=optimizer.fused_params())
        planner = self.record.build(self.config, with_neighbours(self.record, context, self.others))
        check_built(self.record.slot, planner, f"{self.record.slot} {self.record.name!r}")
        tiers = isinstance(planner, TierPlanner)
        if isinstance(self.record, ShardingRecord) and tiers != self.record.tiers:
            raise ContractBroken(
                f"a record says by `tiers` whether its planner is a TierPlanner, and this one says "
                f"{self.record.tiers} of a {type(planner).__name__}. Declare `tiers={tiers}`."
            )
        group = dist.group.WORLD
        assert group is not None
        plan = planner.plan(model, Topology(), group)
        if not isinstance(plan, ShardingPlan):
            raise ContractBroken(f"plan must return TorchRec's ShardingPlan, not {plan!r}.")
        for path, tables in tables_of(model).items():
            missing = [t for t in tables if t not in plan.plan.get(path, {})]
            if missing:
                raise ContractBroken(
                    f"the plan must place every table, but leaves out {missing} of module "
                    f"{path!r}. Plan all embedding modules of model.named_modules()."
                )
        text = planner.explain()
        if not isinstance(text, str) or not text.strip():
            raise ContractBroken("explain must say in words why the last plan is what it is.")
        return Arranged(model, plan, planner.sharders())


def check_sharding(subject: Subject) -> None:
    subject.hold(
        subject.pool is not None,
        f"a {subject.record.slot} is checked on ranks",
        "Call check_record(record, pool=gloo_pool).",
    )
    assert subject.pool is not None
    try:
        check_parity(
            subject.pool,
            Probe,
            random_batches(SCHEMA, steps=2),
            arrange=ByRecord(subject.record, subject.config, subject.context, subject.others),
            tables=["sgd"],
        )
    except RanksFailed as error:
        subject.hold(
            False,
            f"training with its plan failed: {error}",
            "Correct it; or, where ranks were late on a busy machine, give them longer by "
            "`pytest --gloo-deadline SECONDS`.",
        )
    except AssertionError as error:
        subject.hold(
            False,
            f"training with its plan must equal training unsharded: {error}",
            "Look at the way of the gradients: averaged over ranks, once.",
        )
