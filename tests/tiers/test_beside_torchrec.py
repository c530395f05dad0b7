"""Parity of tables that are in no tier, beside one that is: four gloo ranks, against TorchRec."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from tiered import ROWS, Bags, ByTiers, batch_of, confined, tier_plan
from torch import nn
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_row_wise,
)
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arranged, BySharding, tables_of
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders

Kind = Literal["row_wise", "table_row_wise", "column_wise", "data_parallel"]


def of_songs(drawn: ByTiers) -> TierPlan:
    plan = tier_plan(drawn, n_nodes=2)
    return dataclasses.replace(plan, tables={"songs": plan.tables["songs"]})


@dataclass(frozen=True)
class Beside:
    """`songs` row-wise, behind tiers if they are drawn; `artists`, a mean, as TorchRec has it."""

    artists: Kind
    drawn: ByTiers | None = None

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        sharders = BySharding("row_wise")(model, optimizer).sharders
        if self.drawn is not None:
            sharders = tier_sharders(ShardedTiers(of_songs(self.drawn)), sharders)
        return Arranged(model, self._plan(model, sharders), sharders)

    def _plan(self, model: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> ShardingPlan:
        kinds = {
            "row_wise": row_wise(),
            "table_row_wise": table_row_wise(host_index=0),
            "column_wise": column_wise(ranks=[0, 1, 2, 3]),
            "data_parallel": data_parallel(),
        }
        ((path, _),) = tables_of(model).items()
        module = model.get_submodule(path)
        plan = construct_module_sharding_plan(
            module,
            {"songs": row_wise(), "artists": kinds[self.artists]},
            sharder=next(each for each in sharders if isinstance(module, each.module_type)),
            local_size=4,
            device_type="cpu",
        )
        for table, sharding in plan.items():
            if table == "songs" or self.artists != "data_parallel":
                sharding.compute_kernel = "fused"
        return ShardingPlan(plan={path: plan})


@pytest.mark.parametrize("artists", ["row_wise", "table_row_wise", "column_wise", "data_parallel"])
def test_a_table_of_torchrec_beside_a_tiered_one(gloo_pool: GlooPool, artists: Kind) -> None:
    batches = [[batch_of(4 * step + rank, 6) for rank in range(4)] for step in range(4)]
    check_parity(
        gloo_pool,
        Bags,
        batches,
        arrange=Beside(artists, drawn=ByTiers(2, seed=3)),
        reference=Beside(artists),
        tables=["sgd"],
    )


def test_hot_steps_leave_a_data_parallel_table_to_torchrec(gloo_pool: GlooPool) -> None:
    """Where rows of the tiered one travel, the other is in a module apart: a batch is hot whatever
    it looks up there."""
    drawn = ByTiers(2, seed=3, tiers="replicated", coalesce="rank")
    plan = of_songs(drawn)
    rows = {"songs": plan.tables["songs"].replicated, "artists": np.arange(ROWS["artists"])}
    batches = [
        [confined(batch_of(4 * step + rank, 6), rows) for rank in range(4)] for step in (0, 1)
    ]
    hot = [[dataclasses.replace(one, hot_under=plan.version) for one in step] for step in batches]
    check_parity(
        gloo_pool,
        Bags,
        [*hot, *batches],
        arrange=Beside("data_parallel", drawn=drawn),
        reference=Beside("data_parallel"),
        reference_batches=[*batches, *batches],
        tables=["sgd"],
    )
