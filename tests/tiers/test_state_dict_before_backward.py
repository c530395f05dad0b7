"""A state dict between a forward and its backward: four gloo ranks, beside row-wise TorchRec."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from tiered import Bags, ByTiers, Sequences, batch_of
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel

from recd_plugins.planning.tier_plan import Coalesce
from recd_plugins.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.trained import gather_table
from recd_plugins.trainer.tables import initialise_tables, table_initialisers

TOLERANCE = 1e-6
"""Sums in another order differ by 1e-7 of what they sum, a few steps add it up."""

Model = DistributedModelParallel


def build(arrange: Arrangement, make: Callable[[], nn.Module]) -> Model:
    optimizer = OptimizerSettings(tables="rowwise_adagrad", tables_lr=0.1, tables_eps=1e-4)
    torch.manual_seed(0)
    model = make()
    initialisers = table_initialisers(model)
    arranged = arrange(model, optimizer)
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(sharded, initialisers, 0)
    return sharded


def loss(model: Model, number: int) -> Tensor:
    found: Tensor = model(batch_of(number * dist.get_world_size() + dist.get_rank(), 6))[0]
    return found


def state(model: Model) -> dict[str, Tensor]:
    """The tables', and their optimizer's of this rank's rows."""
    tables = {name: of for name, of in model.state_dict().items() if "embedding" in name}
    found = {name: gather_table(table) for name, table in tables.items()}
    for name, states in model.fused_optimizer.state_dict()["state"].items():
        for key, value in states.items():
            found[f"{name}/{key}"] = value.local_shards()[0].tensor.clone()
    return found


def save_before_backward(make: Callable[[], nn.Module], coalesce: Coalesce) -> None:
    """On a rank: two forwards, a state dict after each, the model's or the optimizer's."""
    models = (
        build(ByTiers(ranks_per_node=2, seed=3, coalesce=coalesce), make),
        build(BySharding("row_wise"), make),
    )
    for model in models:
        for number in range(0, 10, 2):
            first = loss(model, number)
            model.state_dict()
            second = loss(model, number + 1)
            model.fused_optimizer.state_dict()
            (first + second).backward()
    ours, theirs = map(state, models)
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
