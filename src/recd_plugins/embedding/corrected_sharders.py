"""Sharders whose modules are corrected where TorchRec's own would train another model.

`with_means` is for bags: a module with means would also divide sums by the sizes of bags.
`with_own_features` is for feature processors. Where a table of a
FeatureProcessedEmbeddingBagCollection is row-wise, TorchRec writes the positions of ids into the
weights of the batch's KJT, and 0 for those of other keys. It would then weight the bags of other
collections by these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.mean_division import divide_means_alone
from recd_plugins.embedding.wrapped_sharder import AdjustingSharder
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.keyed import with_ids

__all__ = ["with_means", "with_own_features"]

OF_BAGS = (
    EmbeddingBagCollection,
    FeatureProcessedEmbeddingBagCollection,
    ManagedCollisionEmbeddingBagCollection,
)


def with_means(
    sharders: Iterable[ModuleSharder[nn.Module]], model: nn.Module | None
) -> list[ModuleSharder[nn.Module]]:
    """The sharders, with those of bags wrapped where a collection of the model has means, or where
    the model is not known: their modules divide means by the sizes of bags, and sums by nothing."""
    if model is not None and not any(_has_means(module) for module in model.modules()):
        return list(sharders)
    return [
        AdjustingSharder(sharder, divide_means_alone)
        if issubclass(sharder.module_type, OF_BAGS)
        else sharder
        for sharder in sharders
    ]


def with_own_features(
    sharders: Iterable[ModuleSharder[nn.Module]],
) -> list[ModuleSharder[nn.Module]]:
    """The sharders, with those of feature processors wrapped: their modules each take a copy of the
    batch's KJT. Unique samples, which nobody can write to, are expanded."""
    return [
        AdjustingSharder(one, _take_a_copy)
        if one.module_type is FeatureProcessedEmbeddingBagCollection
        else one
        for one in sharders
    ]


def _has_means(module: nn.Module) -> bool:
    return isinstance(module, EmbeddingBagCollection) and any(
        config.pooling is PoolingType.MEAN for config in module.embedding_bag_configs()
    )


def _take_a_copy(sharded: nn.Module) -> None:
    """Have the module take copies, both from a loop that calls it and from a pipeline."""
    kind: Any = type(sharded)

    class TakesACopy(kind):
        def input_dist(self, ctx: Any, features: Any) -> Any:
            return super().input_dist(ctx, _copy_of(features))

        def preprocess_input(self, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
            named = {name: _copy_of(one) for name, one in kwargs.items()}
            return super().preprocess_input([_copy_of(one) for one in args], named)

    TakesACopy.__name__ = TakesACopy.__qualname__ = kind.__name__
    sharded.__class__ = TakesACopy


def _copy_of(features: Any) -> Any:
    """The KJT of all samples: the same ids, with weights of its own that may be written to."""
    if isinstance(features, SparseFeatures):
        features = features.to_kjt()
    if not isinstance(features, KeyedJaggedTensor):
        return features
    weights = features.weights_or_none()
    return with_ids(
        features,
        features.values(),
        lengths=features.lengths(),
        weights=None if weights is None else weights.clone(),
    )
