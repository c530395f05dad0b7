"""An applied update is expected no more: two gloo ranks, whose outputs keep their graphs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist
from tiered import (
    ByTiers,
    Sequences,
    batch_of,
    row_wise_of,
    sharded,
    sharded_tiers_of,
    tables,
    tier_plan,
)
from torch import Tensor
from torchrec.distributed import DistributedModelParallel

from recd_plugins.errors import CapabilityError
from recd_plugins.testing.arrange import Arrangement
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike

DRAWN, THEN = ByTiers(ranks_per_node=2, seed=3), ByTiers(ranks_per_node=2, seed=4)

Model = DistributedModelParallel


def build(arrange: Arrangement) -> Model:
    return sharded(arrange, Sequences, "sgd")


def loss(model: Model, number: int) -> Tensor:
    found: Tensor = model(batch_of(2 * number + dist.get_rank(), 6))[0]
    return found


def retier_with_a_kept_loss() -> None:
    """On a rank: the first loss lives on, with all of its graph, as a metric might have it."""

    def train(behind: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = build(behind)
        with rounding:
            kept = loss(model, 0)
            kept.backward()
            if behind is DRAWN:
                sharded_tiers_of(model).retier(tier_plan(THEN, n_nodes=1))
            loss(model, 1).backward()
        assert kept.grad_fn is not None
        return tables(model)

    assert_alike(train(DRAWN, nullcontext()), *row_wise_of(train, Sequences))


def test_a_loss_that_is_kept_does_not_keep_rows_from_moving(gloo_pool: GlooPool) -> None:
    gloo_pool.run(retier_with_a_kept_loss)


def second_backward() -> str:
    """On a rank: of a graph that is older than the plan."""
    model = build(DRAWN)
    kept = loss(model, 0)
    kept.backward(retain_graph=True)
    sharded_tiers_of(model).retier(tier_plan(THEN, n_nodes=1))
    loss(model, 1).backward()
    try:
        kept.backward()
    except CapabilityError as error:
        return str(error)
    return ""


def test_a_second_backward_of_a_plan_that_was_left_is_refused(gloo_pool: GlooPool) -> None:
    assert all("second backward" in message for message in gloo_pool.run(second_backward))
