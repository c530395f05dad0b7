"""Feature processors, which write into the KJT that they are given: each gets one of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingEnv
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.embedding.wrapped_sharder import WrappedSharder
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.keyed import with_ids

__all__ = ["OwnFeaturesSharder", "with_own_features"]


class OwnFeaturesSharder(WrappedSharder):
    """Has what `inner` makes of a FeatureProcessedEmbeddingBagCollection take a KJT of its own.

    Where one of its tables is row-wise, TorchRec writes the positions of ids into the weights of
    the batch's KJT, and 0 for those of other keys, by which it then weights the bags of other
    collections. Unique samples, which nobody can write to, are expanded.
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
        sharded.__class__ = _taking_its_own(type(sharded))
        return sharded


def with_own_features(
    sharders: Iterable[ModuleSharder[nn.Module]],
) -> list[ModuleSharder[nn.Module]]:
    """The sharders, those of feature processors wrapped so."""
    return [
        OwnFeaturesSharder(one)
        if one.module_type is FeatureProcessedEmbeddingBagCollection
        else one
        for one in sharders
    ]


def _taking_its_own(kind: type[Any]) -> type[nn.Module]:
    """A class of the same name: what a loop calls, and what pipelines call."""

    class TakesItsOwn(kind):
        def input_dist(self, ctx: Any, features: Any) -> Any:
            return super().input_dist(ctx, _its_own(features))

        def preprocess_input(self, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
            named = {name: _its_own(one) for name, one in kwargs.items()}
            return super().preprocess_input([_its_own(one) for one in args], named)

    TakesItsOwn.__name__ = TakesItsOwn.__qualname__ = kind.__name__
    return TakesItsOwn


def _its_own(features: Any) -> Any:
    """All samples' ids, the same tensor, with weights that may be written to."""
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
