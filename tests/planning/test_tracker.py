"""Two ranks: TorchRec's delta tracker has recorded what the batches of both looked up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_tracker.types import DeltaTrackerConfig
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.forecast import FOLDS
from recd_plugins.planning.access.row_counter import RowCounter
from recd_plugins.planning.access.tracker import profile_tracker
from recd_plugins.testing.gloo import GlooPool

ROWS, BATCH, STEPS = 90, 8, 6
BAGS = {
    "rows": row_wise(),
    "table": table_wise(rank=1),
    "columns": column_wise(ranks=[1, 0]),
    "both": column_wise(ranks=[1, 1]),
    "copies": data_parallel(),
}
SEQUENCES = {
    # fbgemm's dense kernel knows no sequences on the CPU.
    "history": row_wise(compute_kernel="fused"),
    "recent": table_wise(rank=0, compute_kernel="fused"),
}
TABLES = [*BAGS, *SEQUENCES]


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        meta = torch.device("meta")
        shape = {"embedding_dim": 8, "num_embeddings": ROWS}
        self.bags = EmbeddingBagCollection(
            [EmbeddingBagConfig(name=name, feature_names=[name], **shape) for name in BAGS],
            False,
            meta,
        )
        self.sequences = EmbeddingCollection(
            [EmbeddingConfig(name=name, feature_names=[name], **shape) for name in SEQUENCES], meta
        )
        self.over = nn.Linear(1, 1)  # for TorchRec's tracker asks for a model within DDP

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        rows = [one.values().sum() for one in self.sequences(features).values()]
        found: torch.Tensor = self.over((self.bags(features).values().sum() + sum(rows)).view(1))
        return found


def batches(rank: int) -> list[KeyedJaggedTensor]:
    draw, found = np.random.default_rng(rank), []
    for _ in range(STEPS):
        lengths = draw.integers(4, size=BATCH * len(TABLES))
        ids = draw.zipf(1.4, lengths.sum()) % ROWS
        found.append(
            KeyedJaggedTensor(TABLES, torch.from_numpy(ids), lengths=torch.from_numpy(lengths))
        )
    return found


def tracked() -> tuple[Profile, str]:
    model, cpu = Tables(), torch.device("cpu")
    bags: Any = EmbeddingBagCollectionSharder()
    sequences: Any = EmbeddingCollectionSharder()
    plan = ShardingPlan(
        {
            name: construct_module_sharding_plan(
                getattr(model, name), ways, sharder=sharder, device_type="cpu"
            )
            for name, ways, sharder in (("bags", BAGS, bags), ("sequences", SEQUENCES, sequences))
        }
    )
    sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=[bags, sequences])
    tracker: Any = sharded.init_torchrec_delta_tracker(DeltaTrackerConfig())
    for batch in batches(dist.get_rank()):
        sharded(batch).backward()
    profile = profile_tracker(tracker, batch_size=BATCH)
    tracker.get_unique_ids()
    with pytest.raises(DataError) as refused:
        profile_tracker(tracker, batch_size=BATCH)
    return profile, str(refused.value)


def test_a_tracker_has_counted_as_batches_would(gloo_pool: GlooPool) -> None:
    (profile, refused), (other, _) = gloo_pool.run(tracked)
    ranks = [batches(rank) for rank in (0, 1)]
    assert other.rows == {}
    assert (profile.samples, profile.batch_size) == (2 * STEPS * BATCH, BATCH)
    for name in TABLES:
        steps = [
            [batch[name].values().numpy() for batch in step] for step in zip(*ranks, strict=True)
        ]
        counter = RowCounter(ROWS)
        for number, step in enumerate(steps):
            # Of sharded tables the tracker sees a step as one batch of both ranks.
            for ids in step if name == "copies" else [np.concatenate(step)]:
                counter.add(
                    ids,
                    BATCH * len(step) // (2 if name == "copies" else 1),
                    number * FOLDS // STEPS,
                )
        expected = counter.distribution(sample=True)
        for part in ("counts", "p", "presence", "ids", "uncertainty"):
            assert np.array_equal(getattr(profile[name], part), getattr(expected, part)), name
    assert "the tracker was read before" in refused
