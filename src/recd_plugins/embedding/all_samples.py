"""Modules of TorchRec's that write into their features: they are handed the ids of all samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

from recd_plugins.embedding.wrapped_sharder import WrappedSharder
from recd_plugins.sparse.features import SparseFeatures

__all__ = ["WRITES_FEATURES", "AllSamplesSharder"]

WRITES_FEATURES = FeatureProcessedEmbeddingBagCollection
"""Where a table of it is row-wise, it puts the positions of ids in the place of their weights."""


class AllSamplesSharder(WrappedSharder):
    """Has what `inner` makes of such a module take a KJT in the place of unique samples."""

    def shard(
        self,
        module: nn.Module,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        sharded: nn.Module = self._inner.shard(module, params, env, device, module_fqn)
        sharded.__class__ = _taking_all_samples(type(sharded))
        return sharded


def _taking_all_samples(kind: type[Any]) -> type[nn.Module]:
    """A class of the same name, whose input is expanded for a loop and for pipelines."""

    class TakesAllSamples(kind):  # type: ignore[misc]
        def input_dist(self, ctx: Any, features: Any) -> Any:
            return super().input_dist(ctx, _all_samples(features))

        def preprocess_input(self, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
            named = {name: _all_samples(one) for name, one in kwargs.items()}
            return super().preprocess_input([_all_samples(one) for one in args], named)

    TakesAllSamples.__name__ = TakesAllSamples.__qualname__ = kind.__name__
    return TakesAllSamples


def _all_samples(features: Any) -> Any:
    return features.to_kjt() if isinstance(features, SparseFeatures) else features
