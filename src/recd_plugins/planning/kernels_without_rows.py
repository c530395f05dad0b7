"""The row-wise tables whose kernel would have no row on some rank: fbgemm looks nothing up in an
empty kernel, so that this rank would fail, and the others wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from recd_plugins.planning.tables.model_tables import ModelTable
from recd_plugins.planning.tables.planned_shards import planned_shards
from recd_plugins.planning.tier_plans.table_sizes import TableSizes

if TYPE_CHECKING:
    from torchrec.distributed.types import ShardingPlan

__all__ = ["has_rows_on_all", "newly_without_rows", "row_wise_tables", "without_rows"]


def has_rows_on_all(num_rows: int, world_size: int) -> bool:
    """Whether each rank has rows of a row-wise table: ceil(rows / U) of them, until there are no
    more."""
    return -(-num_rows // world_size) * (world_size - 1) < num_rows


def without_rows(
    sizes: Mapping[str, TableSizes],
    tables: Mapping[str, ModelTable],
    world_size: int,
    mapped: Collection[str] = (),
    fused: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> list[str]:
    """The tables that would be row-wise in a kernel without a row on some rank, where fbgemm looks
    nothing up.

    A kernel has the tables of a collection that are of one type, pooling, home and optimizer (its
    `fused` params); of bags whose rows travel, and of files, also of one dimension.
    """
    kernels: dict[tuple[object, ...], list[ModelTable]] = {}
    for name, size in sizes.items():
        if not size.as_torchrec:
            table, in_files = tables[name], name in mapped
            travels = table.pooled and size.coalesce != "none"
            optimizer = repr(sorted(fused.get(name, {}).items()))
            alike = (
                *(table.module, table.part, table.element_bytes, in_files, optimizer),
                *(travels, "" if travels else table.pooling),
                table.dim if travels or in_files else 0,
            )
            kernels.setdefault(alike, []).append(table)
    return [
        table.name
        for kernel in kernels.values()
        if not any(has_rows_on_all(one.num_rows, world_size) for one in kernel)
        for table in kernel
    ]


def row_wise_tables(plan: ShardingPlan, tables: Mapping[str, ModelTable]) -> dict[str, TableSizes]:
    """Those of the tables that a plan of TorchRec's has row-wise."""
    shards = planned_shards(plan, tables)
    return {name: TableSizes() for name, one in shards.items() if one.kind == "row_wise"}


def newly_without_rows(
    row_wise: Mapping[str, TableSizes],
    sizes: Mapping[str, TableSizes],
    tables: Mapping[str, ModelTable],
    world_size: int,
    mapped: Collection[str],
    fused: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """`without_rows` of tables with `sizes`, and of others that are `row_wise` beside them; of the
    others only those that would have rows if there were no such sizes and no files."""
    before = without_rows(row_wise, tables, world_size, (), fused)
    found = without_rows({**row_wise, **sizes}, tables, world_size, mapped, fused)
    return [name for name in found if name in sizes or name not in before]
