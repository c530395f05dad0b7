"""The sharder of collections of unique samples, around any sharder of such collections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingEnv
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recd_plugins.compat.torchrec import bags_of
from recd_plugins.embedding.dedup import DedupEmbeddingBagCollection, DedupEmbeddingCollection
from recd_plugins.embedding.sharded import (
    ShardedDedupEmbeddingBagCollection,
    ShardedDedupEmbeddingCollection,
)
from recd_plugins.errors import CapabilityError

__all__ = ["DedupSharder", "with_dedup"]

OF: dict[type[nn.Module], type[nn.Module]] = {
    EmbeddingCollection: DedupEmbeddingCollection,
    EmbeddingBagCollection: DedupEmbeddingBagCollection,
}


class DedupSharder(ModuleSharder[nn.Module]):
    """Offers what `inner` offers for a collection, and has it shard each part."""

    def __init__(self, inner: ModuleSharder[Any]) -> None:
        super().__init__(qcomm_codecs_registry=inner.qcomm_codecs_registry)
        self._inner = inner

    @property
    def module_type(self) -> type[nn.Module]:
        return OF[self._inner.module_type]

    @property
    def fused_params(self) -> dict[str, Any] | None:
        params: dict[str, Any] | None = getattr(self._inner, "fused_params", None)
        return params

    def shard(
        self,
        module: DedupEmbeddingCollection | DedupEmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedDedupEmbeddingCollection | ShardedDedupEmbeddingBagCollection:
        if module.route == "vbe" and (device is None or device.type == "cpu"):
            raise CapabilityError(
                "adapt: the route 'vbe' needs a GPU. On the CPU, fbgemm looks bags up with as many "
                "samples for each feature alone, and TorchRec drops the gradient of sequences. "
                "Take the route 'padded'."
            )

        def sharded(part: nn.Module) -> Any:
            return self._inner.shard(part, params, env, device, module_fqn)

        if isinstance(module, DedupEmbeddingCollection):
            return ShardedDedupEmbeddingCollection(module, [sharded(module)])
        return ShardedDedupEmbeddingBagCollection(
            module, [sharded(bags_of(module, part.tables)) for part in module.parts]
        )

    def shardable_parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
        parameters: dict[str, nn.Parameter] = self._inner.shardable_parameters(module)
        return parameters

    def sharding_types(self, compute_device_type: str) -> list[str]:
        types: list[str] = self._inner.sharding_types(compute_device_type)
        return types

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        kernels: list[str] = self._inner.compute_kernels(sharding_type, compute_device_type)
        return kernels

    def storage_usage(
        self, tensor: torch.Tensor, compute_device_type: str, compute_kernel: str
    ) -> dict[str, int]:
        used: dict[str, int] = self._inner.storage_usage(
            tensor, compute_device_type, compute_kernel
        )
        return used


def with_dedup(sharders: Iterable[ModuleSharder[Any]]) -> list[ModuleSharder[Any]]:
    """The sharders, and those of the adapted collections around them."""
    given = list(sharders)
    types = {sharder.module_type for sharder in given}
    return given + [
        DedupSharder(sharder)
        for sharder in given
        if sharder.module_type in OF and OF[sharder.module_type] not in types
    ]
