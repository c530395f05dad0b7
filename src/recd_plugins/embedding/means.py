"""Means and sums of bags, each table sharded in a way of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingEnv
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection

from recd_plugins.compat.mean_division import divide_means_alone
from recd_plugins.embedding.wrapped_sharder import WrappedSharder

__all__ = ["MeansSharder", "with_means"]

OF_BAGS = (
    EmbeddingBagCollection,
    FeatureProcessedEmbeddingBagCollection,
    ManagedCollisionEmbeddingBagCollection,
)


class MeansSharder(WrappedSharder):
    """Has means alone divided by the sizes of bags, in what any sharder of bags makes.

    `DistributedModelParallel.reshard` asks the `inner` sharder, and the module divides as before.
    """

    def shard(
        self,
        module: nn.Module,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        sharded: nn.Module = self._inner.shard(module, params, env, device, module_fqn)
        divide_means_alone(sharded)
        return sharded


def with_means(
    sharders: Iterable[ModuleSharder[nn.Module]], model: nn.Module | None
) -> list[ModuleSharder[nn.Module]]:
    """The sharders; where a collection of the model has means, or nobody knows the model, those of
    bags divide them alone."""
    if model is not None and not any(_has_means(module) for module in model.modules()):
        return list(sharders)
    return [
        MeansSharder(sharder) if issubclass(sharder.module_type, OF_BAGS) else sharder
        for sharder in sharders
    ]


def _has_means(module: nn.Module) -> bool:
    return isinstance(module, EmbeddingBagCollection) and any(
        config.pooling is PoolingType.MEAN for config in module.embedding_bag_configs()
    )
