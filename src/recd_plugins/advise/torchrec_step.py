"""Times TorchRec's own part of a step, which does not depend on the batch, on this device: in steps
with hardly any rows and samples.

This part is the Python of TorchRec's pipeline, of its exchange of features and of its sharded
collections, with the calls of their kernels. One rank stands for many: it makes the same calls as
each rank, and the prices of links have the time of exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.pytorch import nothing_on_stdout
from recd_plugins.data.batch import Batch
from recd_plugins.embedding.timing import seconds_of

if TYPE_CHECKING:
    from torchrec.distributed.types import ModuleSharder

__all__ = ["Collection", "of_one_row", "seconds_of_torchrec"]

Collection: TypeAlias = EmbeddingBagCollection | EmbeddingCollection

SAMPLES = 2
"""The number of samples in a batch, each with one id of each feature."""


def seconds_of_torchrec(
    model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]], device: torch.device
) -> float:
    """The seconds that TorchRec itself takes in a step with a model's collections; on the CPU, of
    one thread.

    0 if the model has no collections, or if this process is a rank of a job, since the other ranks
    would have to take part.
    """
    collections = [one for one in model.modules() if isinstance(one, Collection)]
    if not collections or dist.is_initialized():
        return 0.0
    with _one_rank(device):
        from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
        from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
        from torchrec.distributed.types import ShardingPlan

        small = _Small(collections)
        plans = {
            f"collections.{number}": construct_module_sharding_plan(
                one,
                {table.name: table_wise(rank=0, compute_kernel="fused") for table in _configs(one)},
                local_size=1,
                world_size=1,
                device_type=device.type,
            )
            for number, one in enumerate(small.collections)
        }
        sharded = DistributedModelParallel(
            small, device=device, plan=ShardingPlan(plans), sharders=list(sharders)
        )
        optimizer = torch.optim.SGD(small.dense.parameters(), lr=0.0)
        pipeline = TrainPipelineSparseDist(sharded, optimizer, device)
        batches = repeat(small.batch())
        return seconds_of(lambda: pipeline.progress(batches), device)


def of_one_row(collection: Collection, device: torch.device) -> Collection:
    """A collection like this one whose tables have one row each."""
    if isinstance(collection, EmbeddingBagCollection):
        bags = [replace(one, num_embeddings=1) for one in collection.embedding_bag_configs()]
        return EmbeddingBagCollection(
            tables=bags, is_weighted=collection.is_weighted(), device=device
        )
    rows = [replace(one, num_embeddings=1) for one in collection.embedding_configs()]
    return EmbeddingCollection(tables=rows, need_indices=collection.need_indices(), device=device)


class _Small(nn.Module):
    """The collections, with one row of each table, and a small dense layer of one input."""

    def __init__(self, collections: Sequence[Collection]) -> None:
        super().__init__()
        meta = torch.device("meta")
        self.dense = nn.Linear(1, 1)
        self.collections = nn.ModuleList(of_one_row(one, meta) for one in collections)
        self._of_rows = [
            [name for names in one.embedding_names_by_table() for name in names]
            if isinstance(one, EmbeddingCollection)
            else []
            for one in collections
        ]
        """The names of the embeddings that each collection yields one by one."""
        self._features = [
            name for one in collections for table in _configs(one) for name in table.feature_names
        ]
        self._weighted = any(
            isinstance(one, EmbeddingBagCollection) and one.is_weighted() for one in collections
        )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss = self.dense(batch.dense).sum()
        for one, names in zip(self.collections, self._of_rows, strict=True):
            found = one(batch.features)
            for name in names:
                loss = loss + found[name].values().sum()
            if not names:
                loss = loss + found.values().sum()
        return loss, loss.detach()

    def batch(self) -> Batch:
        keys = list(dict.fromkeys(self._features))
        size = SAMPLES * len(keys)
        features = KeyedJaggedTensor(
            keys=keys,
            values=torch.zeros(size, dtype=torch.long, device="cpu"),
            lengths=torch.ones(size, dtype=torch.long, device="cpu"),
            weights=torch.ones(size, device="cpu") if self._weighted else None,
        )
        each = torch.ones(SAMPLES, device="cpu")
        return Batch(dense=each[:, None], features=features, labels=each, weights=each)


def _configs(collection: Collection) -> list[BaseEmbeddingConfig]:
    if isinstance(collection, EmbeddingBagCollection):
        return list(collection.embedding_bag_configs())
    return list(collection.embedding_configs())


@contextmanager
def _one_rank(device: torch.device) -> Iterator[None]:
    """Inside, there is a process group of only this process."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    with nothing_on_stdout():
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
