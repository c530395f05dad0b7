"""On a rank: what a step of an embedding collection hands to all-to-alls, seen by torch's
dispatcher."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.scars.tables import TableLookups
from recd_plugins.planning.access.distribution import Integers
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.measure.traffic import TrafficCounter

__all__ = ["exchanged"]


class ExchangedSequences(nn.Module):
    """The mean of everything that is looked up."""

    def __init__(self, lookups: TableLookups, dim: int) -> None:
        super().__init__()
        self.sequences = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=name,
                    embedding_dim=dim,
                    num_embeddings=rows.num_rows,
                    feature_names=[name],
                )
                for name, rows in lookups.rows.items()
            ],
            device=torch.device("meta"),
        )

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        embedded = self.sequences(features)
        return torch.stack([one.values().mean() for one in embedded.values()]).sum()


def exchanged(lookups: TableLookups, dim: int, batch_size: int, steps: int, cached: float) -> float:
    """Bytes of a step through all-to-alls: ids, rows and their gradients; the mean over `steps`.

    Ids are coalesced per rank. The hottest rows, a share `cached` of each table, are on all ranks.
    """
    torch.manual_seed(0)
    plan = TierPlan(
        tables={
            name: TablePlan(
                table=name,
                replicated=_hottest(lookups, name, cached),
                coalesce="rank",
            )
            for name in lookups.rows
        },
        n_nodes=dist.get_world_size(),
        ranks_per_node=1,
    )
    model = ExchangedSequences(lookups, dim)
    fused = OptimizerSettings(tables="sgd").fused_params()
    sharders = tier_sharders(ShardedTiers(plan), [EmbeddingCollectionSharder(fused_params=fused)])
    placed = construct_module_sharding_plan(
        model.sequences,
        {name: row_wise(compute_kernel="fused") for name in lookups.rows},
        sharder=sharders[-1],
        device_type="cpu",
    )
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=ShardingPlan(plan={"sequences": placed}),
        sharders=sharders,
    )
    counter = TrafficCounter()
    for step in range(steps):
        ids = lookups.draw(batch_size, seed=step * dist.get_world_size() + dist.get_rank())
        features = KeyedJaggedTensor(
            keys=list(ids),
            values=torch.cat(list(ids.values())),
            lengths=torch.full((len(ids) * batch_size,), lookups.lookups, dtype=torch.int32),
        )
        with counter:
            sharded(features).backward()
    return sum(counter.traffic["all_to_all"].values()) / steps


def _hottest(lookups: TableLookups, table: str, share: float) -> Integers:
    rows = lookups.rows[table]
    count = int(share * rows.num_rows)
    if rows.ids is None:
        return np.arange(count)
    return rows.ids[:count]
