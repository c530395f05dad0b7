"""Sharders that wrap a trainer's sharder: all that they do not say is the trainer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingEnv

__all__ = ["AdjustingSharder", "WrappedSharder"]


class WrappedSharder(ModuleSharder[nn.Module]):
    """Answers as `inner` does, to planners and to whoever reads its attributes; a subclass says in
    `shard` how a module is sharded.

    So sharding types, kernels, fused params and codecs stay the trainer's, with all that the
    trainer's class overrides.
    """

    def __init__(self, inner: ModuleSharder[Any]) -> None:
        super().__init__(qcomm_codecs_registry=inner.qcomm_codecs_registry)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_inner":  # of one that is being copied
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def module_type(self) -> type[nn.Module]:
        kind: type[nn.Module] = self._inner.module_type
        return kind

    @property
    def fused_params(self) -> dict[str, Any] | None:
        params: dict[str, Any] | None = getattr(self._inner, "fused_params", None)
        return params

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


class AdjustingSharder(WrappedSharder):
    """Has `inner` shard a module, and hands `adjust` the result, which it may change in place.

    `DistributedModelParallel.reshard` asks `inner`, and the module stays as it was adjusted.
    """

    def __init__(self, inner: ModuleSharder[Any], adjust: Callable[[nn.Module], object]) -> None:
        super().__init__(inner)
        self._adjust = adjust

    def shard(
        self,
        module: nn.Module,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        sharded: nn.Module = self._inner.shard(module, params, env, device, module_fqn)
        self._adjust(sharded)
        return sharded
