"""TorchRec's private names of a sharded collection, each with the reason; as of TorchRec 1.5 to
1.9.

Those of fbgemm's kernels are in `fused_kernels`, those by which a collection is sharded in parts
in `made_of_parts`, those of its output in `outputs`, and those with which it divides bags in
`mean_division`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.types import ModuleSharder, ShardedModule, ShardedTensor
from torchrec.distributed.utils import optimizer_type_to_emb_opt_type
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from recd_plugins.errors import CapabilityError

__all__ = [
    "device_of",
    "exchanges_of",
    "is_tracked",
    "local_parts",
    "lookups_of",
    "module_options",
    "optimizer_of",
    "order_input",
    "own_fused_params",
    "pooled_columns",
    "refuse_trackers",
    "sharding_types",
    "table_feature_names",
    "table_of",
    "wrap_own_optimizers",
    "yields_ids",
]


def table_of(name: str) -> str:
    """The table of a collection's parameter: NAME of `embeddings.NAME.weight`, or of
    `embedding_bags.NAME.weight`."""
    return name.split(".")[1]


def sharding_types(part: ShardedModule[Any, Any, Any, Any]) -> list[str]:
    """The sharding type of each exchange of a sharded module, in their order."""
    return list(part._sharding_types)


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


def local_parts(sharded: ShardedTensor | DTensor) -> list[tuple[Sequence[int], Tensor]]:
    """This rank's parts of a table, or of its optimizer's state, each with where it begins in the
    whole: its first row and, if it has columns, its first column.

    TorchRec makes a DTensor if the environment has `output_dtensor`.
    """
    if isinstance(sharded, ShardedTensor):
        return [(shard.metadata.shard_offsets, shard.tensor) for shard in sharded.local_shards()]
    local: Any = sharded._local_tensor
    return list(zip(local.local_offsets(), local.local_shards(), strict=True))


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
    for lookup in lookups_of(sharded):
        if hasattr(lookup, "register_optim_state_tracker_fn"):
            lookup.register_optim_state_tracker_fn = refuse


def is_tracked(sharded: ShardedModule[Any, Any, Any, Any]) -> bool:
    """Whether a TorchRec tracker records the ids that kernels look up, or optimizer states."""
    names = "post_lookup_tracker_fn", "optim_state_tracker_fn"
    every = [sharded, *lookups_of(sharded)]
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


def lookups_of(sharded: ShardedModule[Any, Any, Any, Any]) -> Iterator[Any]:
    """The modules that look tables up; those of data-parallel tables without their DDP."""
    for lookup in sharded._lookups:
        while isinstance(lookup, DistributedDataParallel):
            lookup = lookup.module
        yield lookup
