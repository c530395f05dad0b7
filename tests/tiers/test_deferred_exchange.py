"""Ids that a node agrees on leave beside the batch before: four gloo ranks under the pipeline."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import torch
import torch.distributed as dist
from tiered import ByTiers, Sequences, batch_of, tier_plan
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist

from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arranged, Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.exchange.deferred_exchange import DeferredExchange, Sent
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

STEPS = 6


@dataclass(frozen=True)
class Mixed:
    """One table by node, the other by rank."""

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        plan = tier_plan(ByTiers(2, seed=3, coalesce="node"), 2)
        artists = dataclasses.replace(plan.tables["artists"], coalesce="rank")
        plan = dataclasses.replace(plan, tables={**plan.tables, "artists": artists})
        arranged = BySharding("row_wise")(model, optimizer)
        return arranged._replace(sharders=tier_sharders(ShardedTiers(plan), arranged.sharders))


def tables(arrange: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
    """After some steps of the pipeline."""
    optimizer = OptimizerSettings(tables="sgd", tables_lr=0.1)
    torch.manual_seed(0)
    model = Sequences()
    initialisers = table_initialisers(model)
    arranged = arrange(model, optimizer)
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(sharded, initialisers, 0)
    dense = torch.optim.SGD(sharded.module.over.parameters(), lr=0.1)
    pipeline = TrainPipelineSparseDist(sharded, dense, torch.device("cpu"))
    batches = iter([batch_of(step * 4 + dist.get_rank(), 6) for step in range(STEPS)])
    with rounding:
        for _ in range(STEPS):
            pipeline.progress(batches)
    state = sharded.state_dict()
    return {name: gather_table(value) for name, value in state.items() if "embeddings" in name}


def on_a_rank() -> list[bool]:
    """Of each batch, whether its ids had left when TorchRec waited for them."""
    begun: list[bool] = []
    finish = DeferredExchange.finish

    def seen(exchange: DeferredExchange) -> Sent:
        begun.append(exchange.begun)
        return finish(exchange)

    with patch.object(DeferredExchange, "finish", seen):
        ours = tables(Mixed(), nullcontext())
    assert_alike(ours, *plain_of(partial(tables, BySharding("row_wise"))))
    return begun


def test_ids_leave_while_the_batch_before_is_computed(gloo_pool: GlooPool) -> None:
    for begun in gloo_pool.run(on_a_rank, world_size=4):
        # Nothing is computed before the first batch.
        assert begun == [False] + [True] * (STEPS - 1)
