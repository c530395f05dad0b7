"""Rows are as they were looked up, whenever somebody reads them: two gloo ranks, beside row-wise
TorchRec."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from tiered import (
    OUTPUTS,
    Bags,
    ByTiers,
    Sequences,
    own_batch,
    row_wise_of,
    sharded,
    tables,
    train_step,
)
from torch import Tensor, nn

from recd_plugins.testing.arrange import Arrangement
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike

REPLICAS = ByTiers(ranks_per_node=1, seed=3)
COALESCED = ByTiers(ranks_per_node=2, seed=3, coalesce="node")


def read(output: Any, make: Callable[[], nn.Module]) -> Tensor:
    """All numbers of what a collection yields."""
    found = output.to_dict() if make is Bags else {key: output[key].values() for key in OUTPUTS}
    return torch.cat([found[key].flatten() for key in OUTPUTS])


def hold(make: Callable[[], nn.Module], tiers: ByTiers) -> None:
    """On a rank: a step trains between lookups and who reads them, with gradients and without."""

    def train(behind: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = sharded(behind, make, "sgd")
        collection = model.module.bags if make is Bags else model.module.sequences
        with rounding:
            with torch.no_grad():
                evaluated = collection(own_batch(7).features)
            learnt = collection(own_batch(8).features)
            train_step(model, 0)
            known: Any = read(learnt, make)
            found = {"evaluated": read(evaluated, make), "learnt": known.detach().clone()}
            known.square().sum().backward()
            train_step(model, 1)
        return found | tables(model)

    assert_alike(train(tiers, nullcontext()), *row_wise_of(train, make))


@pytest.mark.parametrize(
    ("make", "tiers"),
    [(Sequences, REPLICAS), (Sequences, COALESCED), (Bags, REPLICAS), (Bags, COALESCED)],
)
def test_a_step_in_between_changes_nothing_of_what_was_looked_up(
    gloo_pool: GlooPool, make: Callable[[], nn.Module], tiers: ByTiers
) -> None:
    gloo_pool.run(hold, make, tiers)
