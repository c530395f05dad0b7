"""A collection that is sharded in parts: how the parts are made of it, and how the whole looks to
TorchRec; as of TorchRec 1.5 to 1.9."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ParameterSharding, ShardedModule, ShardingEnv
from torchrec.modules.embedding_configs import BaseEmbeddingConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.torchrec import sharding_types

__all__ = ["MadeOfParts", "ShardedOrder", "bags_of", "every_module", "freed_early", "sequences_of"]

MARK = "_torchrec_"
"""The prefix of the attributes with which callers mark a module for its sharding."""


C = TypeVar("C", EmbeddingBagCollection, EmbeddingCollection)


class MadeOfParts:
    """A sharded module made of parts, as TorchRec's pipelines and 2D parallelism look for them.

    `TrainPipelineSparseDist` walks a pipelined module's `_input_dists` to fuse their exchanges of
    splits, and needs all of them to be made by then.
    """

    parts: Sequence[ShardedModule[Any, Any, Any, Any]]

    @property
    def _input_dists(self) -> list[nn.Module]:
        return [dist for part in self.parts for dist in part._input_dists]

    @property
    def _lookups(self) -> list[nn.Module]:
        return [lookup for part in self.parts for lookup in part._lookups]

    @property
    def _sharding_types(self) -> list[str]:
        return [kind for part in self.parts for kind in sharding_types(part)]

    @property
    def _has_uninitialized_input_dist(self) -> bool:
        return any(part._has_uninitialized_input_dist for part in self.parts)

    @_has_uninitialized_input_dist.setter
    def _has_uninitialized_input_dist(self, value: bool) -> None:
        """Some trainers set this once the model is sharded; it is ignored, since each part uses its
        own."""

    @property
    def _free_features_storage_early(self) -> bool:
        """From TorchRec 1.8 on: whether a pipeline frees the parts' input once ids are on their
        way."""
        return any(getattr(part, "_free_features_storage_early", False) for part in self.parts)

    @_free_features_storage_early.setter
    def _free_features_storage_early(self, value: bool) -> None:
        for part in self.parts:
            if hasattr(part, "_free_features_storage_early"):
                part._free_features_storage_early = value


def every_module(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of a model, and those of its collections' parts, which are not submodules of the
    collections."""
    for module in model.modules():
        yield module
        for part in module.parts if isinstance(module, MadeOfParts) else ():
            yield from every_module(part)


def freed_early(context: Any) -> list[KeyedJaggedTensor]:
    """The input in a part's context that TorchRec would have a pipeline free, without what torch
    cannot free because numpy shares its memory. The context no longer holds it."""
    every: list[KeyedJaggedTensor] = getattr(context, "early_releasable_inputs", [])
    found = [
        kjt
        for kjt in every
        if all(
            tensor.untyped_storage().resizable()
            for tensor in (
                kjt.values(),
                kjt.lengths_or_none(),
                kjt.offsets_or_none(),
                kjt.weights_or_none(),
            )
            if tensor is not None
        )
    ]
    every.clear()
    return found


def bags_of(module: EmbeddingBagCollection, tables: Collection[str]) -> EmbeddingBagCollection:
    """A collection of some of a module's tables: the same parameters under the same names.

    It is made on the meta device, so that no table is allocated twice. Its `_device` is then set to
    the device of the parameters.
    """
    part = EmbeddingBagCollection(
        tables=[config for config in module.embedding_bag_configs() if config.name in tables],
        is_weighted=module.is_weighted(),
        device=torch.device("meta"),
    )
    part.embedding_bags.update({name: module.embedding_bags[name] for name in part.embedding_bags})
    return _standing_for(module, part)


def sequences_of(module: EmbeddingBagCollection, tables: Collection[str]) -> EmbeddingCollection:
    """A collection that does not pool, made as in `bags_of`; its tables have the same dimension."""
    names = [field.name for field in dataclasses.fields(BaseEmbeddingConfig)]
    part = EmbeddingCollection(
        tables=[
            EmbeddingConfig(**{name: getattr(config, name) for name in names})
            for config in module.embedding_bag_configs()
            if config.name in tables
        ],
        device=torch.device("meta"),
    )
    part.embeddings.update({name: module.embedding_bags[name] for name in part.embeddings})
    return _standing_for(module, part)


def _standing_for(module: EmbeddingBagCollection, part: C) -> C:
    """`part` with the device of the module, and the marks that callers have set on the module.

    TorchRec past 1.8 has such a mark, `mark_data_parallel_skip_grad_sync`, which it reads when it
    shards.
    """
    part._device = torch.device(module.device)  # a trainer may have given it as a string
    for name, value in vars(module).items():
        if name.startswith(MARK):
            setattr(part, name, value)
    return part


class ShardedOrder(NamedTuple):
    """The order in which TorchRec has the tables of an EmbeddingBagCollection once it is
    sharded."""

    columns: list[str]
    """The keys of the KeyedTensor."""
    tables: list[str]
    """The tables of the fused optimizer."""

    @classmethod
    def of(
        cls,
        module: EmbeddingBagCollection,
        parameters: Mapping[str, ParameterSharding],
        env: ShardingEnv,
        fused_params: Mapping[str, Any] | None,
        device: torch.device | None,
    ) -> ShardedOrder:
        """Tables are ordered by how they are sharded, then grouped as kernels take them."""
        kind: Any = ShardedEmbeddingBagCollection
        infos = kind.create_grouped_sharding_infos(
            module, dict(parameters), "embedding_bags.", dict(fused_params or {})
        )
        shardings = [
            kind.create_embedding_bag_sharding(own, env, device, permute_embeddings=True)
            for own in infos.values()
        ]
        columns = [name for sharding in shardings for name in sharding.embedding_names()]
        configs = module.embedding_bag_configs()
        tables = {
            name: config.name
            for config, names in zip(configs, get_embedding_names_by_table(configs), strict=True)
            for name in names
        }
        return cls(columns, list(dict.fromkeys(tables[name] for name in columns)))
