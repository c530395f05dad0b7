"""A state dict between a forward and its backward: four gloo ranks, beside row-wise TorchRec."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from tiered import Bags, ByTiers, Sequences, batch_of, sharded, trained
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel

from recd_plugins.planning.tier_plan import Coalesce
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool

TOLERANCE = 1e-6
"""Sums in another order differ by 1e-7 of what they sum, a few steps add it up."""


def loss(model: DistributedModelParallel, number: int) -> Tensor:
    found: Tensor = model(batch_of(number * dist.get_world_size() + dist.get_rank(), 6))[0]
    return found


def save_before_backward(make: Callable[[], nn.Module], coalesce: Coalesce) -> None:
    """On a rank: two forwards, a state dict after each, the model's or the optimizer's."""
    models = (
        sharded(ByTiers(ranks_per_node=2, seed=3, coalesce=coalesce), make),
        sharded(BySharding("row_wise"), make),
    )
    for model in models:
        for number in range(0, 10, 2):
            first = loss(model, number)
            model.state_dict()
            second = loss(model, number + 1)
            model.fused_optimizer.state_dict()
            (first + second).backward()
    ours, theirs = map(trained, models)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("make", "coalesce"),
    [(Sequences, "none"), (Sequences, "node"), (Bags, "none"), (Bags, "rank")],
    ids=["sequences", "sequences coalesced", "bags", "row bags"],
)
def test_it_leaves_the_backward_alone(
    gloo_pool: GlooPool, make: Callable[[], nn.Module], coalesce: Coalesce
) -> None:
    gloo_pool.run(save_before_backward, make, coalesce, world_size=4)
