"""Sharders of bags whose modules divide means by the sizes of bags, and sums by nothing."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection

from recd_plugins.compat.mean_division import divide_means_alone
from recd_plugins.embedding.wrapped_sharder import AdjustingSharder

__all__ = ["with_means"]

OF_BAGS = (
    EmbeddingBagCollection,
    FeatureProcessedEmbeddingBagCollection,
    ManagedCollisionEmbeddingBagCollection,
)


def with_means(
    sharders: Iterable[ModuleSharder[nn.Module]], model: nn.Module | None
) -> list[ModuleSharder[nn.Module]]:
    """The sharders, with those of bags wrapped where a collection of the model has means, or where
    the model is not known."""
    if model is not None and not any(_has_means(module) for module in model.modules()):
        return list(sharders)
    return [
        AdjustingSharder(sharder, divide_means_alone)
        if issubclass(sharder.module_type, OF_BAGS)
        else sharder
        for sharder in sharders
    ]


def _has_means(module: nn.Module) -> bool:
    return isinstance(module, EmbeddingBagCollection) and any(
        config.pooling is PoolingType.MEAN for config in module.embedding_bag_configs()
    )
