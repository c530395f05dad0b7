"""What else training does to tiers: four gloo ranks, each against row-wise TorchRec beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiered import (
    ByTiers,
    Sequences,
    own_batch,
    sharded,
    sharded_tiers_of,
    tables,
    tier_plan,
    train_step,
    trained,
)
from torch import Tensor
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist

from recd_plugins.errors import CapabilityError
from recd_plugins.testing.arrange import Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import Bounds, TableOptimizerName, assert_alike
from recd_plugins.testing.rounding import plain_of

DRAWN = ByTiers(ranks_per_node=2, seed=3)
STEPS = 3
"""At as many rates, where rates change."""

Model = DistributedModelParallel
Pipeline = TrainPipelineSparseDist[Any, Any]


def build(arrange: Arrangement, kind: TableOptimizerName = "rowwise_adagrad") -> Model:
    return sharded(arrange, Sequences, kind)


def both(train: Callable[[Model], None], kind: TableOptimizerName = "rowwise_adagrad") -> None:
    """On a rank: train behind tiers and without, and compare."""

    def plain(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = build(BySharding("row_wise"), kind)
        with rounding:
            train(model)
        return tables(model)

    ours = build(DRAWN, kind)
    train(ours)
    assert_alike(tables(ours), *plain_of(plain))


def change_learning_rates(model: Model) -> None:
    for number in range(STEPS):
        for group in model.fused_optimizer.param_groups:
            group["lr"] = 0.1 / (number % 7 + 1)
        train_step(model, number)


def update_hyper_parameters(model: Model) -> None:
    for number in range(STEPS):
        numbers = {"lr": 0.5 / (number % 7 + 1), "eps": 0.1 * (number % 3 + 1)}
        model.fused_optimizer.update_hyper_parameters(numbers)
        model(own_batch(number))[0].backward()


def change_rates_before_backward(model: Model) -> None:
    """fbgemm steps at the rate that it had in the forward."""
    for number in range(STEPS):
        loss = model(own_batch(number))[0]
        for group in model.fused_optimizer.param_groups:
            group["lr"] = 0.5 / (number % 7 + 1)
        model.fused_optimizer.zero_grad()
        loss.backward()


def forward_twice(model: Model) -> None:
    for number in range(0, 2 * STEPS, 2):
        (model(own_batch(number))[0] + model(own_batch(number + 1))[0]).backward()


def forward_without_backward(model: Model) -> None:
    for number in range(0, 2 * STEPS, 2):
        with torch.no_grad():
            model(own_batch(number))
        model(own_batch(number))  # a loss that nobody asks the gradient of
        train_step(model, number + 1)


@pytest.mark.parametrize("kind", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize(
    "train",
    [
        change_learning_rates,
        update_hyper_parameters,
        change_rates_before_backward,
        forward_twice,
        forward_without_backward,
    ],
)
def test_all_else_that_training_does_is_as_torchrec_does_it(
    gloo_pool: GlooPool, train: Callable[[Model], None], kind: str
) -> None:
    gloo_pool.run(both, train, kind, world_size=4)


def replicas_on_a_rank() -> tuple[list[Tensor], list[Tensor]]:
    model = build(DRAWN)
    for number in range(3):
        train_step(model, number)
    groups = model.module.sequences.tiers._holder.groups
    return (
        [group.replicated_tier.rows for group in groups],
        [group.per_node_tier.share.rows for group in groups],
    )


def test_replicas_are_equal_bit_by_bit(gloo_pool: GlooPool) -> None:
    found = gloo_pool.run(replicas_on_a_rank, world_size=4)
    for rank, (replicated, per_node) in enumerate(found):
        torch.testing.assert_close(replicated, found[0][0], atol=0, rtol=0)
        torch.testing.assert_close(per_node, found[rank % 2][1], atol=0, rtol=0)


@cache
def row_wise(world_size: int) -> tuple[Mapping[str, Tensor], Bounds]:
    """On a rank: what four steps of row-wise TorchRec come to, and what others may be off by."""

    def plain(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = build(BySharding("row_wise"))
        with rounding:
            for number in range(4):
                train_step(model, number)
        return trained(model)

    return plain_of(plain)


def move_between(there: Arrangement, back: Arrangement, through_optimizer_first: bool) -> None:
    """On a rank: two steps, move everything to the other arrangement, two more."""
    first, second = build(there), build(back)
    for number in range(2):
        train_step(first, number)
        train_step(second, number + 20)  # elsewhere
    if through_optimizer_first:
        second.fused_optimizer.load_state_dict(first.fused_optimizer.state_dict())
        second.load_state_dict(first.state_dict())
    else:
        second.load_state_dict(first.state_dict())
        second.fused_optimizer.load_state_dict(first.fused_optimizer.state_dict())
    for number in range(2, 4):
        train_step(first, number)
        train_step(second, number)
    for model in (first, second):
        assert_alike(trained(model), *row_wise(dist.get_world_size()))


@pytest.mark.parametrize(
    ("there", "back", "optimizer_first"),
    [
        (DRAWN, BySharding("row_wise"), False),
        (BySharding("row_wise"), DRAWN, True),
        (DRAWN, ByTiers(ranks_per_node=4, seed=4), False),
        (DRAWN, ByTiers(ranks_per_node=4, seed=4), True),
    ],
    ids=["to TorchRec", "from TorchRec", "to another plan", "to another plan, optimizer first"],
)
def test_checkpoints_move(
    gloo_pool: GlooPool, there: Arrangement, back: Arrangement, optimizer_first: bool
) -> None:
    gloo_pool.run(move_between, there, back, optimizer_first, world_size=4)


Between = Callable[[Model, Pipeline, int], None]
"""What is done with the model and its pipeline before the step of this number."""


def pipelined(
    behind: Arrangement, rounding: AbstractContextManager[object], between: Between | None = None
) -> dict[str, Tensor]:
    """On a rank: six steps of TorchRec's pipeline, which has batches in flight."""
    model = build(behind)
    optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
    pipeline: Pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
    stream = iter([own_batch(number) for number in range(6)])
    with rounding:
        for number in range(6):
            if between is not None:
                between(model, pipeline, number)
            pipeline.progress(stream)
    return trained(model)


@cache
def plainly_pipelined() -> tuple[Mapping[str, Tensor], Bounds]:
    """On a rank: what these steps come to in row-wise TorchRec, and what others may be off by."""
    return plain_of(partial(pipelined, BySharding("row_wise")))


def retier_under_way() -> None:
    """On a rank: three plans in one run of the pipeline."""

    def between(model: Model, pipeline: Pipeline, number: int) -> None:
        if number in (2, 3, 5):
            drawn = dataclasses.replace(DRAWN, seed=number)
            sharded_tiers_of(model).retier(tier_plan(drawn, n_nodes=2))

    assert_alike(pipelined(DRAWN, nullcontext(), between), *plainly_pipelined())


def test_rows_move_between_tiers_while_batches_are_in_flight(gloo_pool: GlooPool) -> None:
    gloo_pool.run(retier_under_way, world_size=4)


def evaluate_under_way() -> None:
    """On a rank: a new plan, and an evaluation by it before the batches in flight by the old."""

    def between(model: Model, pipeline: Pipeline, number: int) -> None:
        if number in (2, 4):
            drawn = dataclasses.replace(DRAWN, seed=number)
            sharded_tiers_of(model).retier(tier_plan(drawn, n_nodes=2))
            pipeline.detach()
            model.eval()
            with torch.no_grad():
                model(own_batch(99))
            model.train()
            pipeline.attach(sparse_dist=False)

    assert_alike(pipelined(DRAWN, nullcontext(), between), *plainly_pipelined())


def test_rows_go_back_to_batches_in_flight_after_an_evaluation(gloo_pool: GlooPool) -> None:
    gloo_pool.run(evaluate_under_way, world_size=4)


def retier_before_backward() -> str:
    model = build(DRAWN)
    loss = model(own_batch(0))[0]
    sharded_tiers_of(model).retier(tier_plan(dataclasses.replace(DRAWN, seed=9), n_nodes=1))
    try:
        model(own_batch(1))
    except CapabilityError as error:
        loss.backward()
        return str(error)
    return ""


def test_rows_do_not_move_while_a_backward_is_due(gloo_pool: GlooPool) -> None:
    assert all("after the backward" in message for message in gloo_pool.run(retier_before_backward))
