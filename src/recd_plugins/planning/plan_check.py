"""A plan held to the model that it is for: TorchRec takes any, and fails deep inside of one that
does not fit, or leaves out what nobody asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import PluginError, listed, nearest, shown
from recd_plugins.planning.sharders import sharded_modules

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = ["check_plan"]

IN_PART = ("key_value", "ssd_virtual_table", "dram_virtual_table")
"""The kernels that hold some of a table's rows."""


def check_plan(
    plan: ShardingPlan,
    model: nn.Module,
    sharders: Sequence[ModuleSharder[Any]],
    world_size: int,
    whose: str,
) -> None:
    """`PluginError` where a plan names a module or a table that there is not, leaves out a table of
    a module that it shards, or places a table as TorchRec does not; `whose` opens the message."""
    known = {path for path, _ in model.named_modules(remove_duplicate=False)}
    for path, placed in plan.plan.items():
        if path not in known:
            raise PluginError(
                f"{whose} a plan of module {path!r}, which the model has not; "
                f"{nearest(path, [one for one, *_ in sharded_modules(model, sharders)])}"
            )
        if not isinstance(placed, Mapping):
            raise PluginError(
                f"{whose} {shown(placed)} for module {path!r}, where it must be an "
                "EmbeddingModuleShardingPlan: a ParameterSharding for each of its tables."
            )
    for path, module, sharder in sharded_modules(model, sharders):
        if path in plan.plan:
            places: Any = plan.plan[path]
            tables = sharder.shardable_parameters(module)
            _check_tables(places, tables, path, whose)
            for name, table in tables.items():
                of_table = f"{whose} for table {name!r} of {path!r}"
                _check_place(places[name], table, world_size, of_table)


def _check_tables(placed: Collection[str], tables: Collection[str], path: str, whose: str) -> None:
    for name in placed:
        if name not in tables:
            raise PluginError(
                f"{whose} a place for table {name!r}, which module {path!r} has not; "
                f"{nearest(name, tables)}"
            )
    if lacking := [name for name in tables if name not in placed]:
        raise PluginError(
            f"{whose} no place for {listed(lacking, kind='table')} of module {path!r}. Place every "
            "table of a module, or leave the whole module out."
        )


def _check_place(place: Any, table: Tensor, world_size: int, whose: str) -> None:
    from torchrec.distributed.embedding_types import EmbeddingComputeKernel
    from torchrec.distributed.types import ParameterSharding, ShardingType

    if not isinstance(place, ParameterSharding):
        raise PluginError(f"{whose} {shown(place)}, where it must be a ParameterSharding.")
    kinds = [one.value for one in ShardingType]
    kernels = [one.value for one in EmbeddingComputeKernel]
    for what, value, right in (
        ("sharding_type", place.sharding_type, kinds),
        ("compute_kernel", place.compute_kernel, kernels),
    ):
        if value not in right:
            raise PluginError(f"{whose} {what} {shown(value)}; {nearest(str(value), right)}")
    if place.sharding_type == ShardingType.DATA_PARALLEL.value:
        return
    shards = getattr(place.sharding_spec, "shards", None)
    if not shards or not (place.ranks or place.sharding_type == ShardingType.ROW_WISE.value):
        raise PluginError(
            f"{whose} {place.sharding_type} without `ranks` and a `sharding_spec` of shards. Give "
            "both, or say data_parallel."
        )
    ranks = {*(place.ranks or ()), *(one.placement.rank() for one in shards if one.placement)}
    if outside := sorted(rank for rank in ranks if not 0 <= rank < world_size):
        raise PluginError(
            f"{whose} {listed(outside, kind='rank')}, and there are {world_size} ranks from 0. "
            "Plan for `group.size()`."
        )
    if place.compute_kernel in IN_PART:
        return
    rows, columns = table.shape
    held = sum(one.shard_sizes[0] * one.shard_sizes[1] for one in shards)
    if held != rows * columns:
        raise PluginError(
            f"{whose} shards that hold {held:,} numbers, and the table has {rows:,} x {columns}. "
            "Let its `shard_sizes` add up to the table."
        )
