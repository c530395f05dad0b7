"""A state dict between a forward and its backward: four gloo ranks, beside row-wise TorchRec."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest
import torch.distributed as dist
from tiered import Bags, ByTiers, Sequences, batch_of, sharded, trained
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel

from recd_plugins.planning.tier_plan import Coalesce
from recd_plugins.testing.arrange import Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of

MEANS = 4e-6
"""Of a collection that takes a mean, row-wise TorchRec divides all bags by their ids plus 1e-6:
gradients are a millionth smaller, and the squares that an optimizer keeps twice that."""


def loss(model: DistributedModelParallel, number: int) -> Tensor:
    found: Tensor = model(batch_of(number * dist.get_world_size() + dist.get_rank(), 6))[0]
    return found


def save_before_backward(make: Callable[[], nn.Module], coalesce: Coalesce) -> None:
    """On a rank: two forwards, a state dict after each, the model's or the optimizer's."""

    def train(arrange: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = sharded(arrange, make)
        for number in range(0, 10, 2):
            with rounding:
                first = loss(model, number)
            model.state_dict()
            with rounding:
                second = loss(model, number + 1)
            model.fused_optimizer.state_dict()
            with rounding:
                (first + second).backward()
        return trained(model)

    ours = train(ByTiers(ranks_per_node=2, seed=3, coalesce=coalesce), nullcontext())
    expected, bounds = plain_of(partial(train, BySharding("row_wise")))
    if make is Bags:
        bounds = {name: bound + MEANS * expected[name].abs() for name, bound in bounds.items()}
    assert_alike(ours, expected, bounds)


@pytest.mark.parametrize(
    ("make", "coalesce"),
    [(Sequences, "none"), (Sequences, "node"), (Bags, "none"), (Bags, "rank")],
    ids=["sequences", "sequences coalesced", "bags", "row bags"],
)
def test_it_leaves_the_backward_alone(
    gloo_pool: GlooPool, make: Callable[[], nn.Module], coalesce: Coalesce
) -> None:
    gloo_pool.run(save_before_backward, make, coalesce, world_size=4)
