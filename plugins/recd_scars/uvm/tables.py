"""The tables of a plan as the choice of their kernels takes them, and that choice as options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recd_plugins.api import CapabilityError
from recd_plugins.api.planning import (
    GB,
    CacheAlgorithm,
    ModelTable,
    SequenceTable,
    TableConstraint,
    TableSizes,
)
from recd_scars.uvm.choice import Choice, HostTable
from recd_scars.uvm.hits import Shards, hit_curve
from recd_scars.uvm.kernel_bytes import KernelBytes

__all__ = ["check_host_memory", "constraints", "host_tables"]


def host_tables(
    tables: Mapping[str, SequenceTable],
    found: Mapping[str, ModelTable],
    sizes: Mapping[str, TableSizes],
    *,
    world_size: int,
    batch_size: int,
    fused: Mapping[str, Any],
    algorithm: CacheAlgorithm,
) -> list[HostTable]:
    """Row-wise over so many ranks, which together have `world_size * batch_size` samples a step."""
    made = []
    for name, table in tables.items():
        rows = table.rows
        shards = Shards.of(
            rows,
            replicated=sizes[name].replicated,
            world_size=world_size,
            samples=world_size * batch_size,
        )
        made.append(
            HostTable(
                name=name,
                bytes=KernelBytes.of(
                    num_rows=-(-rows.num_rows // world_size),
                    dim=table.dim,
                    widest=_widest(found, name, coalesced=sizes[name].coalesce != "none"),
                    element_bytes=table.element_bytes,
                    fused=fused,
                    algorithm=algorithm,
                ),
                curve=hit_curve(shards, algorithm),
                rows=shards.rows,
                accessed=shards.accessed,
            )
        )
    return made


def _widest(found: Mapping[str, ModelTable], name: str, *, coalesced: bool) -> int:
    """The dim of the widest table that may share the kernel: bags that sum share it with all of
    their collection; tables of rows that travel are of one dim."""
    own = found[name]
    if coalesced or not own.pooled:
        return own.dim
    return max(table.dim for table in found.values() if table.module == own.module)


def constraints(
    choices: Mapping[str, Choice], algorithm: CacheAlgorithm
) -> dict[str, TableConstraint]:
    """As the sharding slot's planner is told. All name the algorithm, so that they share kernels,
    whichever table has a cache."""
    return {
        name: TableConstraint(
            sharding_types=("row_wise",),
            compute_kernels=(choice.kernel,),
            load_factor=choice.load_factor,
            cache_algorithm=algorithm,
        )
        for name, choice in choices.items()
    }


def check_host_memory(choices: Mapping[str, Choice], host_memory_gb: float | None) -> None:
    """`CapabilityError` where tables need more than a rank's share of host memory."""
    from torchrec.distributed.planner.constants import DDR_CAP

    needed = sum(choice.host_bytes for choice in choices.values()) / GB
    has = DDR_CAP / GB if host_memory_gb is None else host_memory_gb
    if needed > has:
        raise CapabilityError(
            f"cache: tables of {needed:.3g} GB a rank are to lie in host memory, of which a rank "
            f"has {has:.3g} GB. Set topology.host_memory_gb to what it has, or train on more ranks."
        )
