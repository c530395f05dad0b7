"""A state dict between a forward and its backward: four gloo ranks, beside row-wise TorchRec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial

import pytest
import torch.distributed as dist
from tiered import Bags, ByTiers, Sequences, batch_of, row_wise_of, sharded, trained
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel

from recd_plugins.planning.tier_plans.tier_plan import Coalesce
from recd_plugins.testing.arrange import Arrangement
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import Bounds, assert_alike


def loss(model: DistributedModelParallel, number: int) -> Tensor:
    found: Tensor = model(batch_of(number * dist.get_world_size() + dist.get_rank(), 6))[0]
    return found


def train(
    make: Callable[[], nn.Module],
    arrange: Arrangement,
    rounding: AbstractContextManager[object],
) -> dict[str, Tensor]:
    """Two forwards, a state dict after each, the model's or the optimizer's."""
    model = sharded(arrange, make)
    for number in range(0, 4, 2):
        with rounding:
            first = loss(model, number)
        model.state_dict()
        with rounding:
            second = loss(model, number + 1)
        model.fused_optimizer.state_dict()
        with rounding:
            (first + second).backward()
    return trained(model)


@cache
def row_wise(make: Callable[[], nn.Module]) -> tuple[Mapping[str, Tensor], Bounds]:
    """On a rank: once for all tiers that are held to it."""
    return row_wise_of(partial(train, make), make)


def save_before_backward(make: Callable[[], nn.Module], coalesce: Coalesce) -> None:
    """On a rank: with tiers and without."""
    ours = train(make, ByTiers(ranks_per_node=2, seed=3, coalesce=coalesce), nullcontext())
    assert_alike(ours, *row_wise(make))


@pytest.mark.parametrize(
    ("make", "coalesce"),
    [(Sequences, "none"), (Sequences, "node"), (Bags, "none"), (Bags, "rank")],
    ids=["sequences", "sequences coalesced", "bags", "row bags"],
)
def test_it_leaves_the_backward_alone(
    gloo_pool: GlooPool, make: Callable[[], nn.Module], coalesce: Coalesce
) -> None:
    gloo_pool.run(save_before_backward, make, coalesce, world_size=4)
