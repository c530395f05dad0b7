"""Parity where each rank's loss is of another table: four gloo ranks, beside row-wise TorchRec."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pytest
import torch.distributed as dist
from tiered import Bags, ByTiers, Sequences, batch_of, row_wise_of, sharded, tier_plan, trained
from torch import Tensor, nn

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arranged, Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders


def own_feature() -> str:
    """Of `songs` alone on even ranks, of `artists` on odd ones."""
    return ("heard", "liked")[dist.get_rank() % 2]


class PartedBags(Bags):
    def forward(self, batch: Batch) -> Tensor:  # type: ignore[override]
        return self.bags(batch.features)[own_feature()].square().mean()


class PartedSequences(Sequences):
    def forward(self, batch: Batch) -> Tensor:  # type: ignore[override]
        return self.sequences(batch.features)[own_feature()].values().square().mean()


@dataclass(frozen=True)
class Uneven:
    """Tiers of which `artists` alone is coalesced, or alone has no tier at all."""

    named: bool

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        arranged = BySharding("row_wise")(model, optimizer)
        plan = tier_plan(ByTiers(2, seed=3), n_nodes=dist.get_world_size() // 2)
        tables = dict(plan.tables)
        artists = tables.pop("artists")
        if self.named:
            tables["artists"] = dataclasses.replace(artists, coalesce="rank")
        sharded_tiers = ShardedTiers(dataclasses.replace(plan, tables=tables))
        return arranged._replace(sharders=tier_sharders(sharded_tiers, arranged.sharders))


def train_parted(make: Callable[[], nn.Module], arrange: Arrangement) -> None:
    """On a rank: with tiers and without, the same weights and states."""

    def train(behind: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = sharded(behind, make)
        with rounding:
            for number in range(2):
                at = number * dist.get_world_size() + dist.get_rank()
                model(batch_of(at, 6)).backward()
        return trained(model)

    assert_alike(train(arrange, nullcontext()), *row_wise_of(train, make))


@pytest.mark.parametrize(
    ("make", "arrange"),
    [
        (PartedBags, ByTiers(2, seed=3)),
        (PartedBags, ByTiers(2, seed=3, coalesce="rank")),
        (PartedSequences, Uneven(named=True)),
        (PartedSequences, Uneven(named=False)),
    ],
    ids=["sums", "row bags", "groups", "a table of no group"],
)
def test_backward_comes_to_every_table_on_every_rank(
    gloo_pool: GlooPool, make: Callable[[], nn.Module], arrange: Arrangement
) -> None:
    gloo_pool.run(train_parted, make, arrange, world_size=4)
