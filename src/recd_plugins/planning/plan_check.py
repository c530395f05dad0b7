"""The check of a plan against its model, and against the other ranks' plans: TorchRec accepts any
plan, and fails deep inside if it does not fit, or silently leaves tables out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from recd_plugins.errors import PluginError, listed, nearest, shown, so_many
from recd_plugins.planning.sharders import sharded_modules
from recd_plugins.planning.tables.embedding_collections import embedding_collections, has_sequences
from recd_plugins.planning.tables.planned_tables import planned_tables
from recd_plugins.planning.together import unless_alike

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = ["check_plan", "check_same", "dense_tables"]

IN_PART = ("key_value", "ssd_virtual_table", "dram_virtual_table")
"""The kernels that hold only some of a table's rows."""
MAKES = "`construct_module_sharding_plan` of TorchRec makes them."
"""Who makes shards as TorchRec takes them."""


def check_plan(
    plan: ShardingPlan,
    model: nn.Module,
    sharders: Sequence[ModuleSharder[Any]],
    world_size: int,
    whose: str,
    device: str = "cpu",
) -> None:
    """`PluginError` where a plan names a module or a table that does not exist, leaves out a table
    of a module that it shards, or places a table as TorchRec does not, or cannot on this device.
    `whose` opens the message."""
    known = {path for path, _ in model.named_modules(remove_duplicate=False)}
    for path, placed in plan.plan.items():
        if path not in known:
            raise PluginError(
                f"{whose} a plan of module {path!r}, which the model does not have; "
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
            plain = _of_equal_parts(module, sharder)
            for name, table in tables.items():
                of_table = f"{whose} for table {name!r} of {path!r}"
                _check_place(places[name], table, world_size, of_table)
                if name in plain:
                    if has_sequences(module):
                        _check_of_sequences(places[name], device, of_table)
                    _check_parts(places[name], table, world_size, of_table)
                if device == "cpu" and _is_dense(places[name]) and has_sequences(module):
                    raise PluginError(
                        f"{of_table} {_kind(places[name])}: on a CPU the dense kernel of fbgemm "
                        "pools sequences, which ends in a wrong shape or in a crash. Name the "
                        'fused one, as `row_wise(compute_kernel="fused")` or '
                        '`table_wise(rank=0, compute_kernel="fused")`.'
                    )


def check_same(plan: ShardingPlan, group: ProcessGroup, whose: str) -> None:
    """`PluginError` on every rank of a group where their plans differ; all of them call it."""
    mine = _in_words(plan)
    plans = unless_alike(mine, group)
    if not plans:
        return
    first = plans[0]
    rank, other = next((rank, one) for rank, one in enumerate(plans) if one != first)
    table = next(name for name in {**first, **other} if first.get(name) != other.get(name))
    raise PluginError(
        f"{whose} different plans on the ranks: of table {table!r} rank 0 has "
        f"{first.get(table, 'no place')}, and rank {rank} has {other.get(table, 'no place')}. "
        "Return the same plan on every rank: it must not depend on the rank, the time or random "
        "numbers; or let rank 0 plan for all."
    )


def dense_tables(plan: ShardingPlan) -> list[str]:
    """The tables whose rows are parameters like any other, which the dense optimizer steps."""
    return [name for _, name, place in planned_tables(plan) if _is_dense(place)]


def _is_dense(place: Any) -> bool:
    return bool(place.sharding_type == "data_parallel" or place.compute_kernel == "dense")


def _kind(place: Any) -> str:
    kind = str(place.sharding_type)
    return kind if kind == "data_parallel" else f"{kind} with the {place.compute_kernel} kernel"


def _in_words(plan: ShardingPlan) -> dict[str, str]:
    """Where each table is, in the same words on every rank."""
    found = {}
    for path, name, place in planned_tables(plan):
        words = [_kind(place)]
        if place.sharding_type != "data_parallel":
            shards = getattr(place.sharding_spec, "shards", ())
            on = place.ranks or [one.placement.rank() if one.placement else None for one in shards]
            sizes = [(*one.shard_offsets, *one.shard_sizes) for one in shards]
            words += [f"on {listed(on, len(on), kind='rank')}", f"in {sizes}"]
        found[f"{path}.{name}"] = " ".join(words)
    return found


def _check_tables(placed: Collection[str], tables: Collection[str], path: str, whose: str) -> None:
    for name in placed:
        if name not in tables:
            raise PluginError(
                f"{whose} a place for table {name!r}, which module {path!r} does not have; "
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
    every = [one.value for one in EmbeddingComputeKernel]
    kernels = [one for one in every if not one.startswith("quant")]  # those do not train
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
            "both, or write data_parallel."
        )
    ranks = {*(place.ranks or ()), *(one.placement.rank() for one in shards if one.placement)}
    if outside := sorted(rank for rank in ranks if not 0 <= rank < world_size):
        raise PluginError(
            f"{whose} {listed(outside, kind='rank')}, of a group of "
            f"{so_many(world_size, 'rank')}, counted from 0. Plan for `group.size()`."
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
    if _overlap(shards, (rows, columns)):
        at = ", ".join(f"({', '.join(map(str, one.shard_offsets))})" for one in shards[:4])
        raise PluginError(
            f"{whose} shards that overlap or lie outside of the table; they begin at {at}"
            f"{', ...' if len(shards) > 4 else ''}. Let each begin where others end: "
            "`construct_module_sharding_plan` of TorchRec finds the offsets."
        )


def _of_equal_parts(module: nn.Module, sharder: ModuleSharder[Any]) -> set[str]:
    """The tables of a collection that TorchRec's own sharder shards, except those in buckets;
    another sharder may take other parts."""
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    own = (EmbeddingCollectionSharder.shard, EmbeddingBagCollectionSharder.shard)
    if getattr(type(sharder), "shard", None) not in own:
        return set()
    return {
        config.name
        for path, _, configs in embedding_collections(module)
        for config in configs
        if not path and not getattr(config, "total_num_buckets", None)
    }


def _check_of_sequences(place: Any, device: str, whose: str) -> None:
    """`PluginError` unless TorchRec shards sequences in this way."""
    from torchrec.distributed.embedding import EmbeddingCollectionSharder

    kinds = EmbeddingCollectionSharder().sharding_types(device)
    if place.sharding_type not in kinds:
        raise PluginError(
            f"{whose} {place.sharding_type}, by which TorchRec shards no sequences, but bags "
            f"alone. Take one of {', '.join(kinds)}."
        )


def _check_parts(place: Any, table: Tensor, world_size: int, whose: str) -> None:
    """`PluginError` unless a table's shards are those in which TorchRec looks ids up: it takes
    their number, order and ranks for granted, and would train another rank's rows."""
    kind = place.sharding_type
    if kind == "data_parallel" or place.compute_kernel in IN_PART:
        return
    shards, ranks = place.sharding_spec.shards, [*(place.ranks or range(world_size))]
    on = [one.placement.rank() for one in shards if one.placement]
    if len(shards) != len(ranks) or (on and on != ranks):
        raise PluginError(
            f"{whose} {kind} on {listed(ranks, kind='rank')}, and "
            f"{so_many(len(shards), 'shard')} on {listed(on, kind='rank')}. Give each rank of "
            f"`ranks` the shard of its place. {MAKES}"
        )
    number = {"table_wise": 1, "row_wise": world_size}.get(kind, len(shards))
    if len(shards) != number:
        raise PluginError(f"{whose} {kind} in {so_many(len(shards), 'shard')}. {MAKES}")
    if kind == "row_wise" and ranks != [*range(world_size)]:
        raise PluginError(
            f"{whose} row_wise on {listed(ranks, kind='rank')}: TorchRec looks rows up on all "
            f"ranks, in their order. {MAKES}"
        )
    if kind in ("row_wise", "table_row_wise"):
        rows, block = table.shape[0], -(-table.shape[0] // number)
        begins = [min(rows, part * block) for part in range(number)]
        right = [min(rows, begin + block) - begin for begin in begins]
        found = [one.shard_sizes[0] for one in shards]
        if found != right or any(
            size and one.shard_offsets[0] != begin
            for one, size, begin in zip(shards, right, begins, strict=True)
        ):
            raise PluginError(
                f"{whose} {kind} with {listed(found, 8)} rows, in this order, and TorchRec looks "
                f"up as if they were {listed(right, 8)}: it would train other rows. {MAKES}"
            )


def _overlap(shards: Sequence[Any], shape: tuple[int, int]) -> bool:
    """Whether shards that hold as many numbers as a table of this shape overlap, or lie outside of
    it."""
    begins = np.array([one.shard_offsets for one in shards])
    sizes = np.array([one.shard_sizes for one in shards])
    ends = begins + sizes
    if (begins < 0).any() or (ends > shape).any():
        return True
    for axis in (0, 1):
        if (sizes[:, 1 - axis] == shape[1 - axis]).all():  # side by side, as whole rows are
            order = np.argsort(begins[:, axis], kind="stable")
            return bool((begins[order[1:], axis] < ends[order[:-1], axis]).any())
    each = (begins[:, None] < ends[None]) & (begins[None] < ends[:, None])
    return int(each.all(-1).sum()) > int((sizes > 0).all(-1).sum())
