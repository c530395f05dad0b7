"""TorchRec's private names, all that we touch, each with the reason; as of TorchRec 1.8."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ParameterSharding, ShardedModule, ShardingEnv
from torchrec.modules.embedding_configs import BaseEmbeddingConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer
from torchrec.sparse.jagged_tensor import KeyedTensor

__all__ = [
    "LazyKeyedTensor",
    "OfParts",
    "ShardedOrder",
    "bags_of",
    "bounds_check_of",
    "device_of",
    "exchanges_of",
    "flush_kernels",
    "fused_arithmetic",
    "leave_means",
    "optimizer_of",
    "order_input",
    "output_type",
    "pooled_columns",
    "purge_kernels",
    "sequences_of",
    "sharding_types",
    "table_feature_names",
    "yields_ids",
]

C = TypeVar("C", EmbeddingBagCollection, EmbeddingCollection)

MARK = "_torchrec_"
"""What the names of attributes begin with by which callers mark a module for its sharding."""


class OfParts:
    """What TorchRec's pipelines and 2D parallelism look for on a sharded module, of its parts.

    `TrainPipelineSparseDist` walks `_input_dists` of a pipelined module to have their exchanges
    of splits fused, and wants them all made by then.
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


class LazyKeyedTensor(KeyedTensor):
    """A KeyedTensor of tensors that are joined only when its values are asked for.

    KeyedTensor's own methods, and torch's trees, read `_values`.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._joined: Tensor | None = None
        super().__init__(
            keys=list(tensors),
            length_per_key=[tensor.shape[1] for tensor in tensors.values()],
            values=None,  # joined when asked for
        )

    @property
    def _values(self) -> Tensor:
        if self._joined is None:
            self._joined = torch.cat(list(self._tensors.values()), dim=1)
        return self._joined

    @_values.setter
    def _values(self, values: Tensor | None) -> None:
        self._joined = values

    def __getitem__(self, key: str) -> Tensor:
        return self._tensors[key]

    def to_dict(self) -> dict[str, Tensor]:
        return dict(self._tensors)

    def device(self) -> torch.device:
        return next(iter(self._tensors.values())).device


def sharding_types(part: ShardedModule[Any, Any, Any, Any]) -> list[str]:
    """The sharding type of each exchange of a sharded module, in their order."""
    return list(part._sharding_types)


def bags_of(module: EmbeddingBagCollection, tables: Collection[str]) -> EmbeddingBagCollection:
    """A collection of some of a module's tables: the same parameters under the same names.

    It is made on the meta device, so that no table is allocated twice, and then says of itself
    (`_device`) that it is where the parameters are.
    """
    part = EmbeddingBagCollection(
        tables=[config for config in module.embedding_bag_configs() if config.name in tables],
        is_weighted=module.is_weighted(),
        device=torch.device("meta"),
    )
    part.embedding_bags.update({name: module.embedding_bags[name] for name in part.embedding_bags})
    return _standing_for(module, part)


def sequences_of(module: EmbeddingBagCollection, tables: Collection[str]) -> EmbeddingCollection:
    """A collection that does not pool, made as in `bags_of`; the tables are of one dimension."""
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
    """`part` with the device of the module, and what callers have marked it with.

    TorchRec past 1.8 has such a mark, `mark_data_parallel_skip_grad_sync`, which it reads as it
    shards.
    """
    part._device = module.device
    for name, value in vars(module).items():
        if name.startswith(MARK):
            setattr(part, name, value)
    return part


class ShardedOrder(NamedTuple):
    """The order in which TorchRec has the tables of an EmbeddingBagCollection once sharded."""

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
        """Tables come by the way that they are sharded, then grouped as kernels take them."""
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


def table_feature_names(sharded: ShardedModule[Any, Any, Any, Any]) -> tuple[list[str], list[str]]:
    """What a sharded collection looks up, in the order of its exchanges: features, and names.

    A name is that of the output: `feature`, or `feature@table` where tables share a feature.
    """
    shardings: Any = (
        sharded._sharding_type_to_sharding.values()
        if hasattr(sharded, "_sharding_type_to_sharding")  # an EmbeddingCollection's
        else sharded._embedding_shardings
    )
    features = [name for sharding in shardings for name in sharding.feature_names()]
    names = [name for sharding in shardings for name in sharding.uncombined_embedding_names()]
    return features, names


def order_input(sharded: ShardedModule[Any, Any, Any, Any], order: Sequence[int]) -> None:
    """Have a sharded collection take its n-th feature from the KJT's key `order[n]`.

    It would go by the names of features, but the ids of one feature may differ by table. To be
    called once, before its first input.
    """
    module: Any = sharded
    features, _ = table_feature_names(sharded)
    module._create_input_dist(features)
    module._has_uninitialized_input_dist = False
    permutes = list(order) != list(range(len(order)))
    module._features_order = list(order) if permutes else []
    module._has_features_permute = permutes  # an EmbeddingBagCollection's
    tensor = torch.tensor(module._features_order, dtype=torch.int32, device=module._device)
    module.register_buffer("_features_order_tensor", tensor, persistent=False)


def leave_means(sharded: ShardedModule[Any, Any, Any, Any]) -> None:
    """Have an EmbeddingBagCollection yield sums where tables pool by the mean.

    It would divide those of row-wise and table-row-wise ones by the lengths of the bags that it
    is given. Of others its kernels take the mean.
    """
    module: Any = sharded
    module._has_mean_pooling_callback = False


def fused_arithmetic(optimizer: KeyedOptimizer) -> tuple[str, Any]:
    """What steps the rows of a fused kernel: fbgemm's name of its optimizer, and its arguments."""
    kernel: Any = optimizer._emb_module
    return kernel.optimizer.name, kernel.optimizer_args


def bounds_check_of(optimizer: KeyedOptimizer) -> BoundsCheckMode:
    """What a fused kernel does with an id that is none of its rows."""
    kernel: Any = optimizer._emb_module
    return BoundsCheckMode(kernel.bounds_check_mode_int)


def output_type(optimizer: KeyedOptimizer) -> torch.dtype:
    """The type of the embeddings that a fused kernel yields, whatever its table's type."""
    kernel: Any = optimizer._emb_module
    kind: torch.dtype = SparseType.from_int(kernel.output_dtype).as_dtype()
    return kind


def pooled_columns(
    sharded: ShardedModule[Any, Any, Any, Any],
) -> tuple[list[str], list[int]]:
    """The keys of the KeyedTensor that an EmbeddingBagCollection yields, and their widths."""
    module: Any = sharded
    return list(module._embedding_names), list(module._embedding_dims)


def optimizer_of(sharded: ShardedModule[Any, Any, Any, Any]) -> CombinedOptimizer:
    """The fused optimizer that TorchRec made, whatever `fused_optimizer` has become since."""
    optimizer: CombinedOptimizer = sharded._optim
    return optimizer


def device_of(sharded: ShardedModule[Any, Any, Any, Any]) -> torch.device:
    """The device of a sharded collection's tables and outputs."""
    device: torch.device = sharded._device
    return device


def exchanges_of(sharded: ShardedModule[Any, Any, Any, Any]) -> int:
    """How many exchanges of ids an input takes: one for each way that tables are sharded."""
    return len(sharded._input_dists)


def yields_ids(sharded: ShardedModule[Any, Any, Any, Any]) -> bool:
    """Whether an EmbeddingCollection yields the ids beside their rows."""
    need: bool = sharded._need_indices
    return need


def flush_kernels(sharded: ShardedModule[Any, Any, Any, Any]) -> None:
    """Bring rows that kernels cache (UVM) home, so that the tables may be read."""
    for lookup in _lookups(sharded):
        lookup.flush()


def purge_kernels(sharded: ShardedModule[Any, Any, Any, Any]) -> None:
    """Have kernels forget the rows that they cache (UVM), for the tables were written to."""
    for lookup in _lookups(sharded):
        lookup.purge()


def _lookups(sharded: ShardedModule[Any, Any, Any, Any]) -> Iterator[Any]:
    """The modules that look tables up; those of data-parallel tables without their DDP."""
    for lookup in sharded._lookups:
        while isinstance(lookup, DistributedDataParallel):
            lookup = lookup.module
        yield lookup
