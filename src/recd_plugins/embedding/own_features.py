"""Sharders of feature processors, whose modules each take a copy of the batch's KJT.

Where a table of a FeatureProcessedEmbeddingBagCollection is row-wise, TorchRec writes the positions
of ids into the weights of the batch's KJT, and 0 for those of other keys. It would then weight the
bags of other collections by these. Unique samples, which nobody can write to, are expanded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.embedding.wrapped_sharder import AdjustingSharder
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.keyed import with_ids

__all__ = ["with_own_features"]


def with_own_features(
    sharders: Iterable[ModuleSharder[nn.Module]],
) -> list[ModuleSharder[nn.Module]]:
    """The sharders, with those of feature processors wrapped."""
    return [
        AdjustingSharder(one, _take_a_copy)
        if one.module_type is FeatureProcessedEmbeddingBagCollection
        else one
        for one in sharders
    ]


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
