"""Rung 1 and 3 (four ranks): bags whose last table has no row on a rank train there, whatever lies
behind what fbgemm knows of its tables."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.fused_kernels import fused_kernels
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders

ROWS = {"item": 40, "shop": 5}
"""Of five rows three ranks have two, two and one, and the fourth has none."""
FAR = 2**40
"""Where a table would begin that has more rows than fbgemm takes."""


def sharded() -> DistributedModelParallel:
    """On a rank: both tables row-wise, each with a replica, their sums made at home."""
    bags = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(name=n, embedding_dim=8, num_embeddings=rows, feature_names=[n])
            for n, rows in ROWS.items()
        ],
        device=torch.device("meta"),
    )
    tables = {
        name: TablePlan(table=name, replicated=np.array([0]), num_rows=rows)
        for name, rows in ROWS.items()
    }
    sharders = tier_sharders(
        ShardedTiers(TierPlan(tables=tables, n_nodes=2, ranks_per_node=2)),
        [EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.1})],
    )
    placed = construct_module_sharding_plan(
        bags,
        {name: row_wise(compute_kernel="fused") for name in ROWS},
        local_size=2,
        world_size=dist.get_world_size(),
        device_type="cpu",
        sharder=sharders[0],
    )
    return DistributedModelParallel(
        nn.Sequential(bags),
        device=torch.device("cpu"),
        plan=ShardingPlan({"0": placed}),
        sharders=sharders,
    )


def beginnings() -> list[int]:
    """On a rank: where the tables of the kernel begin, and what lies behind that in memory."""
    (kernel,) = set(fused_kernels(sharded()))
    memory = kernel.hash_size_cumsum.untyped_storage()
    found: list[int] = torch.empty(0, dtype=torch.int64).set_(memory).tolist()
    return found


def step() -> float:
    """On a rank."""
    ids = torch.tensor([0, 7, 39, 1, 2, 4])
    kjt = KeyedJaggedTensor([*ROWS], ids, lengths=torch.tensor([1, 2, 1, 2]))
    loss = sharded()(kjt).values().sum()
    loss.backward()
    return float(loss)


def test_a_kernel_ends_in_a_row_on_each_rank(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(beginnings, world_size=4) == [[0, 10, 12]] * 2 + [
        [0, 10, 11],
        [0, 10, 10, 11],
    ]
    assert all(map(math.isfinite, gloo_pool.run(step, world_size=4)))


@pytest.mark.parametrize("behind", [FAR, 1])
def test_fbgemm_reads_behind_its_last_table(behind: int) -> None:
    """If it no longer does, nothing needs to lie there."""
    place = EmbeddingLocation.HOST, ComputeDevice.CPU
    kernel = SplitTableBatchedEmbeddingBagsCodegen(
        [(10, 8, *place), (0, 8, *place)], pooling_mode=PoolingMode.SUM, device=torch.device("cpu")
    )
    begins = kernel.hash_size_cumsum
    kernel.hash_size_cumsum = torch.cat([begins, begins[-1:] + behind])[:-1]
    summed = kernel(torch.tensor([3, 4]), torch.tensor([0, 2, 2])).sum()
    with pytest.raises(RuntimeError, match="2B rows") if behind == FAR else nullcontext():
        summed.backward()
