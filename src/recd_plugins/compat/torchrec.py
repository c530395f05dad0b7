"""All of TorchRec's private names that we use, each with the reason; as of TorchRec 1.5 to 1.9.

Those with which it divides bags are in `mean_division`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import (
    LazyAwaitable,
    ModuleSharder,
    ParameterSharding,
    ShardedModule,
    ShardedTensor,
    ShardingEnv,
)
from torchrec.distributed.utils import optimizer_type_to_emb_opt_type
from torchrec.modules.embedding_configs import BaseEmbeddingConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from recd_plugins.compat.pytorch import is_watched, was_written_to
from recd_plugins.errors import CapabilityError

__all__ = [
    "HasOwnExchange",
    "LazyKeyedTensor",
    "MadeOfParts",
    "ShardedOrder",
    "awaited",
    "bags_of",
    "bounds_check_of",
    "clips_at",
    "count_forward",
    "device_of",
    "every_module",
    "exchanges_of",
    "flush_kernels",
    "freed_early",
    "fused_arithmetic",
    "fused_kernels",
    "is_tracked",
    "kernel_tensors",
    "leave_clipping",
    "leave_weights",
    "local_parts",
    "module_options",
    "next_forward",
    "optimizer_of",
    "order_input",
    "output_type",
    "own_fused_params",
    "pooled_columns",
    "pools",
    "purge_kernels",
    "refuse_trackers",
    "sequences_of",
    "sharding_types",
    "table_feature_names",
    "table_of",
    "wrap_own_optimizers",
    "yields_ids",
]

C = TypeVar("C", EmbeddingBagCollection, EmbeddingCollection)

MARK = "_torchrec_"
"""The prefix of the attributes with which callers mark a module for its sharding."""


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


def table_of(name: str) -> str:
    """The table of a collection's parameter: NAME of `embeddings.NAME.weight`, or of
    `embedding_bags.NAME.weight`."""
    return name.split(".")[1]


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


class HasOwnExchange:
    """The output of a collection whose rows do not come only by TorchRec's exchange.

    TorchRec 1.8's `OutputDistTensorFinder` looks for `_awaitables` in an output, to hook the
    backward of that exchange. If an output has none, its error names a class of ours.
    """

    @property
    def _awaitables(self) -> Any:
        raise CapabilityError(
            "TorchRec's pipeline hooks the backward of a collection's exchange "
            "(OutputDistTensorFinder), but this collection has replicas, coalesced rows or unique "
            "samples, whose gradients take other ways too. Train with TrainPipelineSparseDist; or "
            "hook a dense module (InjectionTargetType.PARAM_GRAD); or leave the collection to "
            "TorchRec."
        )


class LazyKeyedTensor(KeyedTensor):
    """A KeyedTensor of tensors that are joined only when its values are asked for.

    KeyedTensor's own methods, and torch's trees, read `_values`. Once somebody has changed these in
    place, as models change embeddings, or asks for their gradient, each key's values are a view of
    them, as in a KeyedTensor.
    """

    def __init__(self, tensors: Mapping[str, Tensor], widths: Sequence[int]) -> None:
        """`widths` are the widths of the tensors, which are [B, width] each."""
        self._tensors = dict(tensors)
        self._joined: Tensor | None = None
        super().__init__(
            keys=list(tensors),
            length_per_key=[*widths],
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

    @property
    def _changed(self) -> bool:
        joined = self._joined
        return joined is not None and (was_written_to(joined) or is_watched(joined))

    def __getitem__(self, key: str) -> Tensor:
        return super().__getitem__(key) if self._changed else self._tensors[key]

    def to_dict(self) -> dict[str, Tensor]:
        return super().to_dict() if self._changed else dict(self._tensors)

    def device(self) -> torch.device:
        return next(iter(self._tensors.values())).device


def awaited(value: Any) -> Any:
    """What a sharded module yields, once it is there; any other value as it is. TorchRec keeps what
    was waited for by its private way alone: its `wait` would exchange anew."""
    return LazyAwaitable._wait_async(value)


def sharding_types(part: ShardedModule[Any, Any, Any, Any]) -> list[str]:
    """The sharding type of each exchange of a sharded module, in their order."""
    return list(part._sharding_types)


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


def table_feature_names(sharded: ShardedModule[Any, Any, Any, Any]) -> tuple[list[str], list[str]]:
    """The features that a sharded collection looks up, in the order of its exchanges, and their
    names in the output: `feature`, or `feature@table` where tables share a feature."""
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

    Otherwise it would go by the names of features, but the ids of one feature may differ by table.
    Call this once, before its first input.
    """
    module: Any = sharded
    features, _ = table_feature_names(sharded)
    module._create_input_dist(features)
    module._has_uninitialized_input_dist = False
    permutes = list(order) != list(range(len(order)))
    module._features_order = list(order) if permutes else []
    module._has_features_permute = permutes  # an EmbeddingBagCollection's
    # Not a buffer, which TorchRec would make of it at the first input: `shard_modules` requires a
    # module to have the same buffers as before.
    vars(module)["_buffers"].pop("_features_order_tensor", None)
    module._features_order_tensor = torch.tensor(
        module._features_order, dtype=torch.int32, device=module._device
    )
    # Permanently: if a trainer sets the flag again, TorchRec would make a second exchange.
    module._create_input_dist = lambda *_, **__: None


def module_options(sharder: ModuleSharder[Any]) -> dict[str, Any]:
    """The options that a sharder of TorchRec's collections hands to its module, besides params and
    codecs."""
    options: dict[str, Any] = {
        name: getattr(sharder, f"_{name}", None)
        for name in ("use_index_dedup", "sharded_module_order_overwrite")
    }
    return {name: value for name, value in options.items() if value}


def own_fused_params(parameter: nn.Parameter) -> dict[str, Any]:
    """The fused params that `apply_optimizer_in_backward` set for this table, if any.

    They are made of the optimizer's class and arguments as TorchRec does when it shards the table.
    But TorchRec changes the arguments that it is given, and here they stay as they are.
    """
    classes: list[type[torch.optim.Optimizer]] = vars(parameter).get("_optimizer_classes", [])
    kwargs: list[Mapping[str, Any]] = vars(parameter).get("_optimizer_kwargs", [])
    if max(len(classes), len(kwargs)) > 1:
        names = ", ".join(kind.__name__ for kind in classes)
        raise CapabilityError(
            f"apply_optimizer_in_backward was called {len(classes)} times for a table ({names}), "
            "but TorchRec's kernels have one optimizer each. Call it once."
        )
    found = dict(kwargs[0]) if kwargs else {}
    if "lr" in found:
        found["learning_rate"] = found.pop("lr")
    if classes and "optimizer" not in found:
        try:
            found["optimizer"] = optimizer_type_to_emb_opt_type(classes[0])
        except ValueError as error:
            raise CapabilityError(
                f"apply_optimizer_in_backward: {classes[0].__name__} is not an optimizer of "
                f"TorchRec's fused kernels ({error}). Use one of torchrec.optim."
            ) from error
    return found


def fused_arithmetic(optimizer: KeyedOptimizer) -> tuple[str, Any]:
    """The arithmetic that steps the rows of a fused kernel: fbgemm's name of the optimizer, and its
    arguments."""
    kernel: Any = optimizer._emb_module
    return kernel.optimizer.name, kernel.optimizer_args


def bounds_check_of(optimizer: KeyedOptimizer) -> BoundsCheckMode:
    """What a fused kernel does with an id that is not one of its rows."""
    kernel: Any = optimizer._emb_module
    return BoundsCheckMode(kernel.bounds_check_mode_int)


def local_parts(sharded: ShardedTensor | DTensor) -> list[tuple[Sequence[int], Tensor]]:
    """This rank's parts of a table, or of its optimizer's state, each with where it begins in the
    whole: its first row and, if it has columns, its first column.

    TorchRec makes a DTensor if the environment has `output_dtensor`.
    """
    if isinstance(sharded, ShardedTensor):
        return [(shard.metadata.shard_offsets, shard.tensor) for shard in sharded.local_shards()]
    local: Any = sharded._local_tensor
    return list(zip(local.local_offsets(), local.local_shards(), strict=True))


def next_forward(optimizer: KeyedOptimizer) -> tuple[float, int]:
    """The learning rate that a fused kernel's next forward will hand to its backward, and the
    number of that forward, with which the Adams and LAMBs correct their moments."""
    kernel: Any = optimizer._emb_module
    counted = int(kernel.iter_cpu) or (0 if kernel.iter.is_cuda else int(kernel.iter))
    if not counted and _steps_by_count(kernel):
        counted = int(kernel.iter)  # from a checkpoint; this waits for the device at the first step
    return kernel.get_learning_rate(), counted + 1


def count_forward(sharded: ShardedModule[Any, Any, Any, Any]) -> None:
    """Have kernels that step by the number of forwards count one that they do not run."""
    for lookup in _lookups(sharded):
        for kernel in lookup.modules():
            if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen) and _steps_by_count(
                kernel
            ):
                kernel.iter_cpu.fill_(int(kernel.iter_cpu) or int(kernel.iter)).add_(1)
                kernel.iter.add_(1)


def kernel_tensors(model: nn.Module) -> Iterator[tuple[bool, Tensor]]:
    """The tensors that fbgemm's kernels keep for a sharded model's tables on this rank. Each comes
    with True if it has rows, or False if it has the fused optimizer's state of rows."""
    for kernel in fused_kernels(model):
        for name, tensor in (*kernel.named_parameters(), *kernel.named_buffers()):
            if name.endswith(("_dev", "_host", "_uvm")):
                yield name.startswith("weights"), tensor


def fused_kernels(model: nn.Module) -> Iterator[SplitTableBatchedEmbeddingBagsCodegen]:
    """fbgemm's kernels of the sharded modules in a model, which are not submodules of it. Some come
    more than once."""
    for module in model.modules():
        if isinstance(module, ShardedModule) and hasattr(module, "_lookups"):
            for lookup in _lookups(module):
                for kernel in lookup.modules():
                    if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen):
                        yield kernel


def _steps_by_count(kernel: Any) -> bool:
    return "ADAM" in kernel.optimizer.name or "LAMB" in kernel.optimizer.name


def leave_weights(model: nn.Module) -> None:
    """Have fused kernels skip the gradients of weights of ids that are not trained.

    fbgemm computes gradients for all weights, and autograd drops them: on a CPU they take longer
    than the rest of a pooled lookup, forward and backward. Weights that are trained, such as
    TorchRec's position weights, keep theirs.
    """
    for kernel in fused_kernels(model):
        kernel.register_forward_pre_hook(_without_gradients, with_kwargs=True)


def _without_gradients(
    kernel: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    weights: Tensor | None = kwargs.get("per_sample_weights")
    if weights is None or weights.requires_grad:
        return None
    features: list[int] = kernel.feature_table_map  # type: ignore[assignment]
    none = torch.zeros(len(features), dtype=torch.int32, device=weights.device)
    return args, kwargs | {"feature_requires_grad": none}


def clips_at(optimizer: KeyedOptimizer) -> float | None:
    """The bound to which a fused kernel clips each number of its outputs' gradients; None if it
    does not clip."""
    _, arguments = fused_arithmetic(optimizer)
    return float(arguments.max_gradient) if arguments.gradient_clipping else None


def leave_clipping(optimizer: KeyedOptimizer) -> None:
    """Have a fused kernel take the gradients of its outputs without clipping them."""
    kernel: Any = optimizer._emb_module
    kernel.optimizer_args = kernel.optimizer_args._replace(gradient_clipping=False)


def pools(optimizer: KeyedOptimizer) -> bool:
    """Whether a fused kernel sums bags, rather than yielding rows."""
    kernel: Any = optimizer._emb_module
    return bool(kernel.pooling_mode != PoolingMode.NONE)


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


def refuse_trackers(
    sharded: ShardedModule[Any, Any, Any, Any], refuse: Callable[[Any], None]
) -> None:
    """Refuse a TorchRec tracker that would record optimizer states, as one that records ids is
    refused. Such a tracker registers with the lookups."""
    for lookup in _lookups(sharded):
        if hasattr(lookup, "register_optim_state_tracker_fn"):
            lookup.register_optim_state_tracker_fn = refuse


def is_tracked(sharded: ShardedModule[Any, Any, Any, Any]) -> bool:
    """Whether a TorchRec tracker records the ids that kernels look up, or optimizer states."""
    names = "post_lookup_tracker_fn", "optim_state_tracker_fn"
    every = [sharded, *_lookups(sharded)]
    return any(getattr(one, name, None) is not None for one in every for name in names)


def optimizer_of(sharded: ShardedModule[Any, Any, Any, Any]) -> CombinedOptimizer:
    """The fused optimizer that TorchRec made, whatever `fused_optimizer` has become since."""
    optimizer: CombinedOptimizer = sharded._optim
    return optimizer


def wrap_own_optimizers(
    parameter: nn.Parameter, wrap: Callable[[KeyedOptimizer], KeyedOptimizer]
) -> None:
    """Replace the fused optimizer that a table's parameter holds, where torch finds it
    (`_get_in_backward_optimizers`), with what `wrap` makes of it."""
    own = vars(parameter)
    own["_in_backward_optimizers"] = [wrap(one) for one in own.get("_in_backward_optimizers", [])]


def device_of(sharded: ShardedModule[Any, Any, Any, Any]) -> torch.device:
    """The device of a sharded collection's tables and outputs."""
    device: torch.device = sharded._device
    return device


def exchanges_of(sharded: ShardedModule[Any, Any, Any, Any]) -> int:
    """The number of id exchanges that an input takes: one for each way that tables are sharded."""
    return len(sharded._input_dists)


def yields_ids(sharded: ShardedModule[Any, Any, Any, Any]) -> bool:
    """Whether an EmbeddingCollection yields the ids with their rows."""
    need: bool = sharded._need_indices
    return need


def flush_kernels(sharded: ShardedModule[Any, Any, Any, Any]) -> None:
    """Write rows that kernels cache (UVM) back, so that the tables can be read."""
    for lookup in _lookups(sharded):
        lookup.flush()


def purge_kernels(sharded: ShardedModule[Any, Any, Any, Any]) -> None:
    """Have kernels forget the rows that they cache (UVM), because the tables were written to."""
    for lookup in _lookups(sharded):
        lookup.purge()


def _lookups(sharded: ShardedModule[Any, Any, Any, Any]) -> Iterator[Any]:
    """The modules that look tables up; those of data-parallel tables without their DDP."""
    for lookup in sharded._lookups:
        while isinstance(lookup, DistributedDataParallel):
            lookup = lookup.module
        yield lookup
