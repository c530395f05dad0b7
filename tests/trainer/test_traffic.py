"""Ladder: value tests of what counts, then two gloo ranks whose bytes are known by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.measure.traffic import TrafficCounter

ROWS, DIM, SAMPLES = 10, 4, 3
IDS = {0: [[0, 1, 9], [2], []], 1: [[7, 8, 9, 3], [5, 6], [0]]}
"""Of each rank's samples; rows 0 to 4 lie on rank 0, 5 to 9 on rank 1."""


def collectives() -> dict[str, dict[str, float]]:
    """On a rank: each collective once, on 12 floats or its share of them."""
    world, mine = dist.get_world_size(), torch.zeros(12)
    half = list(torch.zeros(12).chunk(world))
    with TrafficCounter() as counter:
        dist.barrier()
        dist.all_to_all_single(torch.empty(12), mine)
        dist.all_reduce(mine)
        dist.reduce_scatter(torch.empty(12 // world), half)
        dist.all_gather([torch.empty(12) for _ in range(world)], mine)
        dist.all_gather_into_tensor(torch.empty(12 * world), mine)
        dist.broadcast(mine.half(), src=0)
        dist.all_to_all_single(torch.empty(4, dtype=torch.int64), torch.zeros(4).long())
    dist.all_reduce(mine)  # no longer counted
    return {name: dict(phases) for name, phases in counter.traffic.items()}


def test_what_a_rank_hands_over_counts_in_bytes(gloo_pool: GlooPool) -> None:
    for found in gloo_pool.run(collectives):
        assert found == {
            "all_gather": {"forward": 2 * 12 * 4},
            "all_reduce": {"forward": 12 * 4},
            "all_to_all": {"forward": 12 * 4, "ids": 4 * 8},
            "broadcast": {"forward": 12 * 2},
            "reduce_scatter": {"forward": 12 * 4},
        }


class Sum(nn.Module):
    """The sum of all embeddings looked up, times a scalar that is all-reduced."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingConfig(
            name="t", embedding_dim=DIM, num_embeddings=ROWS, feature_names=["f"]
        )
        self.tables = EmbeddingCollection(tables=[table], device=torch.device("meta"))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        total = self.scale * self.tables(batch.features)["f"].values().sum()
        return total.sum(), total.detach()


def a_batch(ids: list[list[int]]) -> Batch:
    return Batch(
        dense=torch.zeros(len(ids), 1),
        features=KeyedJaggedTensor(
            keys=["f"],
            values=torch.tensor([one for row in ids for one in row]),
            lengths=torch.tensor([len(row) for row in ids], dtype=torch.int32),
        ),
        labels=torch.zeros(len(ids)),
        weights=torch.ones(len(ids)),
    )


def row_wise_traffic() -> dict[str, dict[str, float]]:
    """On a rank: of a step of the row-wise table, in a full pipeline."""
    model = Sum()
    arranged = BySharding("row_wise")(model, OptimizerSettings())
    sharded = DistributedModelParallel(
        arranged.model,
        device=torch.device("cpu"),
        plan=arranged.plan,
        sharders=arranged.sharders,
    )
    optimizer = torch.optim.SGD([model.scale], lr=0.1)
    pipeline = TrainPipelineSparseDist(sharded, optimizer, torch.device("cpu"))
    batches = iter([a_batch(IDS[dist.get_rank()])] * 6)
    for _ in range(3):
        pipeline.progress(batches)
    with TrafficCounter() as counter:
        pipeline.progress(batches)
    return {name: dict(phases) for name, phases in counter.traffic.items()}


def test_a_row_wise_table_moves_the_bytes_that_its_ids_tell(gloo_pool: GlooPool) -> None:
    for rank, found in enumerate(gloo_pool.run(row_wise_traffic)):
        mine = sum(len(row) for row in IDS[rank])
        looked_up = sum(i // 5 == rank for rows in IDS.values() for row in rows for i in row)
        # To each of two ranks go an int32 length per sample and three int64 splits (of lengths,
        # values and samples); an int64 for each id, once.
        assert found["all_to_all"]["ids"] == 2 * (4 * SAMPLES + 3 * 8) + 8 * mine
        # A float32 row for each id that was looked up here; its gradient for each id asked for.
        assert found["all_to_all"]["forward"] == 4 * DIM * looked_up
        assert found["all_to_all"]["backward"] == 4 * DIM * mine
        assert found["all_reduce"] == {"backward": 4}
        assert set(found) == {"all_to_all", "all_reduce"}


def test_counting_changes_nothing(gloo_pool: GlooPool, tmp_path: Path) -> None:
    from probe_plugin import probe_registry

    registry = probe_registry(tmp_path, rows=160)
    assert gloo_pool.run(losses, registry, counted=True) == gloo_pool.run(
        losses, registry, counted=False
    )


def losses(registry: dict[str, Any], *, counted: bool) -> list[float]:
    """On a rank: of six steps, the third and fourth counted."""
    import contextlib

    from recd_plugins.stack import load
    from recd_plugins.trainer.assemble import assemble

    stack = load(registry)
    batches = iter(stack.loader(dist.get_rank(), dist.get_world_size()))
    job = assemble(stack, torch.device("cpu"))
    found = []
    for step in range(6):
        with TrafficCounter() if counted and step in (2, 3) else contextlib.nullcontext():
            found.append(float(job.pipeline.progress(batches)[0]))
    return found


def test_nothing_counted_is_nothing() -> None:
    with TrafficCounter() as counter:
        torch.ones(3) + 1
    assert counter.traffic == {}
    with pytest.raises(ZeroDivisionError), TrafficCounter():
        1 / 0  # noqa: B018
    assert torch.ones(1).item() == 1  # the mode is left
