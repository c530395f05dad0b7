"""A plan that cannot be retiered to is refused and changes nothing: two gloo ranks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tiered import ROWS, Bags, ByTiers, Sequences, batch_of, sharded, tier_plan
from torch import nn
from torchrec.distributed import DistributedModelParallel

from recd_plugins.errors import RegistryError
from recd_plugins.planning.tier_plan import TablePlan, TierPlan
from recd_plugins.testing.arrange import Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.sharder import TierCluster

DRAWN = ByTiers(ranks_per_node=2, seed=3)
TOLERANCE = 1e-6
"""Sums in another order differ by 1e-7 of what they sum, a few steps add it up."""

Model = DistributedModelParallel


class Both(nn.Module):
    """Two collections of tables by the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences, self.bags = Sequences(), Bags()

    def forward(self, batch: object) -> torch.Tensor:
        loss: torch.Tensor = self.sequences(batch)[0] + self.bags(batch)[0]
        return loss


def build(arrange: Arrangement) -> Model:
    return sharded(arrange, Both, "sgd")


def bad_plans() -> dict[str, TierPlan]:
    """By what the error says."""
    plan = tier_plan(dataclasses.replace(DRAWN, seed=9), n_nodes=1)

    def with_table(table: TablePlan) -> TierPlan:
        return dataclasses.replace(plan, tables={**plan.tables, table.table: table})

    beyond = np.array([0, ROWS["songs"] + 1])
    return {
        "names row 44, but the table has 43": with_table(TablePlan(table="songs", per_node=beyond)),
        "names albums": with_table(TablePlan(table="albums", replicated=np.array([0]))),
        "coalesce is none": with_table(TablePlan(table="artists", coalesce="rank")),
        "for 2 nodes of 1 ranks": dataclasses.replace(plan, n_nodes=2, ranks_per_node=1),
    }


def refuse(says: str) -> None:
    """On a rank: train on after the refusal, by the plan there was."""
    models = build(DRAWN), build(BySharding("row_wise"))
    cluster: TierCluster = models[0].sharders[0]._cluster
    for model in models:
        for number in range(4):
            if model is models[0] and number == 1:
                before = cluster.plan
                with pytest.raises(RegistryError, match=says):
                    cluster.retier(bad_plans()[says])
                assert cluster.plan is before
            model(batch_of(2 * number + dist.get_rank(), 6)).backward()
    tiered, plain = (model.state_dict() for model in models)
    for name in tiered:
        if "embedding" in name:
            ours, theirs = gather_table(tiered[name]), gather_table(plain[name])
            torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("says", bad_plans())
def test_nothing_changes(gloo_pool: GlooPool, says: str) -> None:
    gloo_pool.run(refuse, says)
