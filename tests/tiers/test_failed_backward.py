"""A backward that fails steps no replica, and leaves nothing to others: two gloo ranks, beside
row-wise TorchRec."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
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
    sharded_tiers_of,
    tables,
    tier_plan,
)
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel

from recd_plugins.data.batch import Batch
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.arrange import Arrangement
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike

DRAWN, THEN = ByTiers(ranks_per_node=2, seed=3), ByTiers(ranks_per_node=2, seed=4)


class Stopped(Exception):
    """What somebody raises in a backward."""


def stop(gradient: Tensor) -> Tensor:
    raise Stopped


class Towers(nn.Module):
    """Bags, and rows behind them in backward; no layer that DDP would leave unfinished. Backward
    stops once bags have their gradients, which have not come to fbgemm's kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.bags = Sequences().sequences, Bags().bags

    def forward(self, batch: Batch, *, stops: bool = False) -> Tensor:
        rows, bags = self.rows(batch.features), self.bags(batch.features)
        values = [rows[key].values() for key in OUTPUTS]
        if stops:
            for one in values:
                one.register_hook(stop)
        found = [*values, *(bags[key] for key in OUTPUTS)]
        return sum((one.square().sum() for one in found), torch.zeros(()))


Train = Callable[[DistributedModelParallel], Any]


def fails(loss: Any) -> None:
    with pytest.raises(Stopped):
        loss.backward()


def the_next_step(model: DistributedModelParallel) -> None:
    """The loss of the step that failed lives on, as a loop's variable does."""
    loss = model(own_batch(0), stops=True)
    fails(loss)
    model(own_batch(1)).backward()
    del loss


def the_forward_before(model: DistributedModelParallel) -> None:
    first = model(own_batch(0))
    fails(model(own_batch(1), stops=True))
    first.backward()


def a_state_dict(model: DistributedModelParallel) -> None:
    fails(model(own_batch(0), stops=True))
    model.state_dict()
    model(own_batch(1)).backward()


def another_plan(model: DistributedModelParallel) -> None:
    fails(model(own_batch(0), stops=True))
    gc.collect()
    if hasattr(model.sharders[0], "_cluster"):
        sharded_tiers_of(model).retier(tier_plan(THEN, n_nodes=1))
    model(own_batch(1)).backward()


def hold(then: Train) -> None:
    """On a rank: it fails on all of them."""

    def train(behind: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = sharded(behind, Towers, "sgd")
        with rounding, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", NoticeWarning)
            then(model)
        failed = [one for one in told if "a backward failed" in str(one.message)]
        assert len(failed) == (behind is DRAWN)  # of bags, to whose rows gradients had come
        return tables(model)

    assert_alike(train(DRAWN, nullcontext()), *row_wise_of(partial(train), Bags))


@pytest.mark.parametrize("then", [the_next_step, the_forward_before, a_state_dict, another_plan])
def test_it_is_told_and_training_goes_on(gloo_pool: GlooPool, then: Train) -> None:
    gloo_pool.run(hold, then)
