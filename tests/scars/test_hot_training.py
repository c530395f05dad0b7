"""Rung 3 (two ranks): hot batches from the loader into tiers, held to plain TorchRec; traffic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hot_table import ALL, SOME, Plans, open_stage, plan_of, rows_of, write
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.table import Table
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import Bounds, assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers
from recd_plugins.trainer.measure.traffic import TrafficCounter

DIM = 8
EPOCHS = 3


class Model(nn.Module):
    """Songs one by one, artists pooled."""

    def __init__(self) -> None:
        super().__init__()
        device = torch.device("meta")
        songs = EmbeddingConfig(
            name="songs", embedding_dim=DIM, num_embeddings=20, feature_names=["heard"]
        )
        artists = EmbeddingBagConfig(
            name="artists", embedding_dim=DIM, num_embeddings=5, feature_names=["liked"]
        )
        self.sequences = EmbeddingCollection(tables=[songs], device=device)
        self.bags = EmbeddingBagCollection(tables=[artists], device=device)
        self.sum = _Sum()
        self.over = nn.Linear(2 * DIM, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        summed = self.sum(self.sequences(batch.features)["heard"])
        both = torch.cat([summed, self.bags(batch.features)["liked"]], dim=1)
        logits = self.over(both).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, (loss.detach(), logits.detach())


class _Sum(nn.Module):
    """A module, so that TorchRec's tracer does not look inside."""

    def forward(self, jagged: JaggedTensor) -> Tensor:
        lengths, values = jagged.lengths(), jagged.values()
        sums = values.new_zeros(len(lengths), values.shape[1])
        return sums.index_add(0, torch.repeat_interleave(lengths.long()), values)


def on_two_ranks(plan: TierPlan, coalesce: Any = "none") -> TierPlan:
    tables = {
        name: dataclasses.replace(table, coalesce=coalesce) for name, table in plan.tables.items()
    }
    return dataclasses.replace(plan, tables=tables, ranks_per_node=2)


def build(
    kind: Any,
    sharded_tiers: ShardedTiers | None,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
) -> DistributedModelParallel:
    optimizer = OptimizerSettings(tables=kind, tables_lr=0.1, tables_eps=1e-4)
    torch.manual_seed(0)
    model: nn.Module = Model() if wrap is None else wrap(Model())
    initialisers = table_initialisers(model)
    arranged = BySharding("row_wise")(model, optimizer)
    tiers = sharded_tiers and tier_sharders(sharded_tiers, arranged.sharders)
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=arranged.plan, sharders=tiers or arranged.sharders
    )
    initialise_tables(sharded, initialisers, 0)
    return sharded


def tables_of(model: DistributedModelParallel) -> dict[str, Tensor]:
    return {
        name: gather_table(value)
        for name, value in model.state_dict().items()
        if name.endswith(("songs.weight", "artists.weight"))
    }


PLAIN: dict[Any, tuple[Mapping[str, Tensor], Bounds]] = {}
"""By the optimizer and the rows of each batch; a rank keeps them from test to test."""


def train(folder: str, kind: str, coalesce: str) -> list[list[tuple[str | None, list[int]]]]:
    """On a rank: train through TorchRec's pipeline, re-cache in an epoch; the same plainly.

    By epoch and batch, what it was marked by and its rows of the table.
    """
    first, second = (
        on_two_ranks(plan, coalesce) for plan in (SOME, plan_of(range(6, 20), [0, 1, 2, 3]))
    )
    sharded_tiers, plans = ShardedTiers(first), Plans(first)
    stage = open_stage(
        Table.open(Path(folder)), plans, rank=dist.get_rank(), world_size=2, window=3, tail="pad"
    )
    seen: list[Batch] = []

    def watched() -> Iterator[Batch]:
        for batch in chain.from_iterable(stage for _ in range(EPOCHS)):
            seen.append(batch)
            yield batch

    steps = EPOCHS * len(stage)

    def trained(
        behind: ShardedTiers | None,
        stream: Iterator[Batch],
        rounding: AbstractContextManager[object],
    ) -> dict[str, Tensor]:
        model = build(kind, behind)
        optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
        pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
        with rounding:
            for step in range(steps):
                if behind is not None and step == len(stage) + 2:
                    behind.retier(second)
                    plans.tier_plan = second
                pipeline.progress(stream)
        return tables_of(model)

    def plain(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        unmarked = [dataclasses.replace(batch, hot_under=None) for batch in seen]
        return trained(None, iter(unmarked), rounding)

    ours = trained(sharded_tiers, watched(), nullcontext())
    given = kind, tuple(tuple(rows_of(batch)) for batch in seen)
    if given not in PLAIN:
        PLAIN[given] = plain_of(plain)
    assert_alike(ours, *PLAIN[given])
    found = [(batch.hot_under, rows_of(batch)) for batch in seen]
    return [found[first : first + len(stage)] for first in range(0, steps, len(stage))]


@pytest.mark.parametrize(
    ("kind", "coalesce"), [("sgd", "rank"), ("rowwise_adagrad", "rank"), ("sgd", "none")]
)
def test_hot_batches_train_as_torchrec_on_the_same_batches(
    gloo_pool: GlooPool, tmp_path: Path, kind: str, coalesce: str
) -> None:
    write(tmp_path / "table", 99)
    ranks = gloo_pool.run(train, str(tmp_path / "table"), kind, coalesce)
    first, second = ([[hot for hot, _ in epoch] for epoch in rank] for rank in ranks)
    assert first == second
    assert [len(set(epoch)) for epoch in first] == [2, 3, 2]  # normal, hot under a plan or both
    for epochs in zip(*ranks, strict=True):
        rows = [row for epoch in epochs for _, rows in epoch for row in rows]
        assert sorted(rows) == list(range(99))
        assert len({sum(len(rows) for _, rows in epoch) for epoch in epochs}) == 2  # uneven


def all_to_all_of_steps(folder: str) -> list[tuple[bool, bool]]:
    """On a rank: whether each batch is hot, and whether its step made an all-to-all."""
    found = []
    for plan in (SOME, ALL):
        plan = on_two_ranks(plan, "rank")
        model = build("sgd", ShardedTiers(plan))
        stage = open_stage(
            Table.open(Path(folder)), Plans(plan), rank=dist.get_rank(), world_size=2
        )
        for batch in stage:
            with TrafficCounter() as counter:
                model(batch)[0].backward()
            found.append((batch.hot, "all_to_all" in counter.traffic))
    return found


def traffic_of_hot_steps(folder: str) -> set[str]:
    """On a rank: the collectives of TorchRec's pipeline while all batches are hot."""
    plan = on_two_ranks(ALL, "rank")
    model = build("sgd", ShardedTiers(plan))
    stage = open_stage(Table.open(Path(folder)), Plans(plan), rank=dist.get_rank(), world_size=2)
    optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
    pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
    stream = iter(stage)
    with TrafficCounter() as counter:
        for _ in range(len(stage)):
            pipeline.progress(stream)
    return set(counter.traffic)


def test_a_pipeline_of_hot_batches_reduces_gradients_alone(
    gloo_pool: GlooPool, tmp_path: Path
) -> None:
    write(tmp_path / "table", 100)
    for found in gloo_pool.run(traffic_of_hot_steps, str(tmp_path / "table")):
        # DDP sends its parameters to all ranks before the first step.
        assert found - {"broadcast"} == {"send", "all_reduce"}


def test_a_step_makes_no_all_to_all_if_and_only_if_it_is_hot(
    gloo_pool: GlooPool, tmp_path: Path
) -> None:
    write(tmp_path / "table", 100)
    for found in gloo_pool.run(all_to_all_of_steps, str(tmp_path / "table")):
        assert set(found) == {(True, False), (False, True)}
