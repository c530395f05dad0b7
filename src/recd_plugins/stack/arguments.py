"""Checks of the arguments of a trainer's calls. An error names the argument, where torch or
TorchRec would fail deep below, or take it for something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.data.dataset import SPLITS
from recd_plugins.errors import CapabilityError, RegistryError, nearest, shown, so_many, with_type

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder

__all__ = [
    "check_batches",
    "check_features",
    "check_group",
    "check_model",
    "check_overrides",
    "check_plan_arguments",
    "check_sharders",
    "check_share",
]


SHARDER = ("module_type", "shard")
"""What DistributedModelParallel asks of a sharder, whatever its class."""


def check_overrides(registry: Any, overrides: Any) -> None:
    """`RegistryError` unless they are a registry and a list of overrides."""
    if not isinstance(registry, str | Path | Mapping):
        raise RegistryError(
            f"load: a registry is a path or a mapping, but this is {with_type(registry)}. Write "
            'rp.load("registry.yaml") or rp.load({...}).'
        )
    if isinstance(registry, str) and "\n" in registry:
        raise RegistryError(
            f"load: a registry is a path or a mapping, but this is a text, {shown(registry)}. "
            "Write it to a file, or rp.load(yaml.safe_load(text))."
        )
    if isinstance(overrides, str) or not isinstance(overrides, Sequence):
        raise RegistryError(
            f"load: overrides are a list of texts, but these are {with_type(overrides)}. Write "
            'rp.load(registry, ["train.batch_size=512"]).'
        )
    for one in overrides:
        if not isinstance(one, str):
            raise RegistryError(
                f"load: an override is a text, as 'train.batch_size=512', but this is "
                f"{with_type(one)}."
            )


def check_share(rank: Any, world_size: Any, split: Any) -> None:
    """`RegistryError` unless there is such a rank, and such a split."""
    for name, value, least in (("rank", rank, 0), ("world_size", world_size, 1)):
        if type(value) is bool or not isinstance(value, Integral) or value < least:
            raise RegistryError(
                f"stack.loader: {name} must be an integer >= {least}, but is {with_type(value)}."
            )
    if rank >= world_size:
        raise RegistryError(
            f"stack.loader: rank {rank} is not among {so_many(world_size, 'rank')}, which are "
            "counted from 0."
        )
    if split not in SPLITS:
        raise RegistryError(
            f"stack.loader: there is no split {shown(split)}; {nearest(str(split), SPLITS)}"
        )


def check_model(model: Any, whose: str) -> None:
    """`RegistryError` unless it is a module; `CapabilityError` where it is sharded already, which
    changes its modules in place."""
    from torch import nn
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.types import ShardedModule
    from torchrec.modules.embedding_modules import (
        EmbeddingBagCollectionInterface,
        EmbeddingCollectionInterface,
    )

    if not isinstance(model, nn.Module):
        raise RegistryError(
            f"{whose}: the model is {with_type(model)}, where it must be a torch.nn.Module."
        )
    kinds = [type(module) for module in model.modules()]
    collections = (EmbeddingBagCollectionInterface, EmbeddingCollectionInterface)
    whole = any(issubclass(kind, collections) for kind in kinds)
    sharded = not whole and any(issubclass(kind, ShardedModule) for kind in kinds)
    if isinstance(model, DistributedModelParallel) or sharded:
        raise CapabilityError(
            f"{whose}: the model is sharded already, and has no tables left to shard. Pass the "
            "model itself, before DistributedModelParallel, which shards its modules in place."
        )


def check_sharders(sharders: Any, whose: str) -> list[ModuleSharder[nn.Module]]:
    """The sharders as a list; `RegistryError` where something else is given."""
    if isinstance(sharders, str | Mapping) or not isinstance(sharders, Iterable):
        raise RegistryError(
            f"{whose}: `sharders` are {with_type(sharders)}, where they must be a list of them."
        )
    listed = list(sharders)
    for one in listed:
        is_like_one = all(hasattr(one, part) for part in SHARDER)
        if isinstance(one, type) or not is_like_one:
            cure = f" Make one of it: `{one.__name__}()`." if is_like_one else ""
            raise RegistryError(
                f"{whose}: {with_type(one)} among `sharders` is no ModuleSharder.{cure}"
            )
    return listed


def check_batches(batches: Any, whose: str, name: str = "batches") -> None:
    """`RegistryError` unless iterating over it gives batches; a single batch that is a mapping or a
    KeyedJaggedTensor would give its keys."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    right = "an iterable of batches, as a DataLoader or a list"
    if isinstance(batches, Mapping | KeyedJaggedTensor):
        kind = type(batches).__name__
        raise RegistryError(
            f"{whose}: `{name}` is one batch ({kind}), where it must be {right}: [batch]."
        )
    iterable = hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")
    if isinstance(batches, str | bytes) or not iterable:
        raise RegistryError(f"{whose}: `{name}` is {with_type(batches)}, where it must be {right}.")


def check_features(features: Any, whose: str) -> None:
    """`RegistryError` unless it is a function, or nothing."""
    if features is not None and not callable(features):
        raise RegistryError(
            f"{whose}: `features` is {with_type(features)}, where it must be a function from a "
            "batch to its KeyedJaggedTensor: `features=lambda batch: batch.sparse_features`."
        )


def check_group(group: Any, whose: str) -> None:
    """`RegistryError` unless it is a process group, or nothing."""
    from torch.distributed import ProcessGroup

    if group is not None and not isinstance(group, ProcessGroup):
        raise RegistryError(
            f"{whose}: `process_group` is {with_type(group)}, where it must be a "
            "torch.distributed.ProcessGroup."
        )


def _in_place_of(topology: Any) -> str:
    """What to write in place of what somebody passed as a topology: often TorchRec's, or a loader
    that should have had its name."""
    from torchrec.distributed.planner import Topology as TorchRecs

    if isinstance(topology, TorchRecs):
        return (
            "This is TorchRec's: leave it out, and write its nodes and links into registry.yaml, "
            "as `topology: {ranks_per_node: 8, inter_node_gbps: 100}`."
        )
    if isinstance(topology, str) or not hasattr(topology, "__iter__"):
        return "Leave it out: registry.yaml names it (`topology:`)."
    return "If these are batches, name them: `stack.plan(model, batches=loader)`."


def check_plan_arguments(
    topology: Any, process_group: Any, batches: Any, features: Any, profile: Any, constraints: Any
) -> None:
    """`RegistryError` where an argument of `stack.plan` is of another type than it must be."""
    from torchrec.distributed.planner.types import ParameterConstraints

    from recd_plugins.planning.access.access_profile import Profile
    from recd_plugins.planning.cluster.topology import Topology

    if topology is not None and not isinstance(topology, Topology):
        raise RegistryError(
            f"stack.plan: `topology` is {with_type(topology)}, where it must be a Topology of "
            f"recd_plugins.api. {_in_place_of(topology)}"
        )
    for name, value, kinds, right in (
        ("profile", profile, (Profile, Path, str), "a Profile, or the path of one"),
        ("constraints", constraints, (Mapping,), "a mapping from table to ParameterConstraints"),
    ):
        if value is not None and not isinstance(value, kinds):
            raise RegistryError(
                f"stack.plan: `{name}` is {with_type(value)}, where it must be {right}."
            )
    check_group(process_group, "stack.plan")
    if batches is not None:
        check_batches(batches, "stack.plan")
    check_features(features, "stack.plan")
    for table, one in (constraints or {}).items():
        if not isinstance(one, ParameterConstraints):
            raise RegistryError(
                f"stack.plan: the constraints of table {shown(table)} are {with_type(one)}, where "
                "they must be ParameterConstraints."
            )
