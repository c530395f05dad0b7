"""A plan that cannot be retiered to is refused and changes nothing: two gloo ranks."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch.distributed as dist
from tiered import (
    ROWS,
    Bags,
    ByTiers,
    Sequences,
    batch_of,
    row_wise_of,
    sharded,
    tables,
    tier_plan,
)
from torch import Tensor, nn

from recd_plugins.errors import RegistryError
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.testing.arrange import Arrangement
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.tiers.sharder import ShardedTiers

DRAWN = ByTiers(ranks_per_node=2, seed=3)


class Both(nn.Module):
    """Two collections of tables by the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences, self.bags = Sequences(), Bags()

    def forward(self, batch: object) -> Tensor:
        loss: Tensor = self.sequences(batch)[0] + self.bags(batch)[0]
        return loss


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
        "for 2 nodes of 1 rank": dataclasses.replace(plan, n_nodes=2, ranks_per_node=1),
    }


def refuse(says: str) -> None:
    """On a rank: train on after the refusal, by the plan there was."""

    def train(behind: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = sharded(behind, Both, "sgd")
        with rounding:
            for number in range(3):
                if behind is DRAWN and number == 1:
                    sharded_tiers: ShardedTiers = model.sharders[0]._sharded
                    before = sharded_tiers.plan
                    with pytest.raises(RegistryError, match=says):
                        sharded_tiers.retier(bad_plans()[says])
                    assert sharded_tiers.plan is before
                model(batch_of(2 * number + dist.get_rank(), 6)).backward()
        return tables(model)

    assert_alike(train(DRAWN, nullcontext()), *row_wise_of(train, Both))


@pytest.mark.parametrize("says", bad_plans())
def test_nothing_changes(gloo_pool: GlooPool, says: str) -> None:
    gloo_pool.run(refuse, says)
