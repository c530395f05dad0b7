"""How each table of a plan is served from host memory, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recd_plugins.api import CapabilityError
from recd_plugins.api.planning import (
    GB,
    CacheAlgorithm,
    Ledger,
    ModelTable,
    ProfiledTable,
    TableConstraint,
    TableSizes,
    aligned,
    in_share,
)
from recd_scars.uvm.hits import TableShards, hit_curve
from recd_scars.uvm.kernel_bytes import KernelBytes
from recd_scars.uvm.kernel_choice import HostTable, KernelChoice, choose

__all__ = ["ServingKernels"]

HEADER = (
    "table",
    "kernel",
    "load factor",
    "slots",
    "replicas hit",
    "cache hits",
    "device MB",
    "host MB",
)


@dataclass(frozen=True, kw_only=True)
class ServingKernels:
    """The kernels that serve one plan's tables."""

    capacity: float
    """The bytes of a rank's device that are left for tables and their caches."""
    choices: Mapping[str, KernelChoice]
    kernels: Mapping[str, TableConstraint]
    """The choices as constraints, for the planner behind."""
    reason: str

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        found: Mapping[str, ModelTable],
        *,
        capacity: float,
        sample_bytes: float,
        fused: Mapping[str, Mapping[str, Any]],
        algorithm: CacheAlgorithm,
        host_memory_gb: float | None,
    ) -> ServingKernels:
        """The choice for a device with `capacity` bytes for replicas, a batch and tables; `fused`
        are the fused params of each table."""
        prices = ledger.prices
        tables = {name: one.table for name, one in ledger.tables.items()}
        sizes = {name: one.sizes for name, one in ledger.tables.items()}
        replicas = sum(one.sizes.replicated * one.table.width for one in ledger.tables.values())
        left = capacity - prices.k * replicas - prices.batch_size * sample_bytes
        choices = choose(
            _host_tables(
                tables,
                found,
                sizes,
                world_size=prices.cluster.world_size,
                batch_size=prices.batch_size,
                fused=fused,
                algorithm=algorithm,
            ),
            left,
        )
        _check_host_memory(choices, host_memory_gb)
        reason = _lines(choices, tables, sizes, capacity=left, algorithm=algorithm)
        return cls(
            capacity=left,
            choices=choices,
            kernels=_constraints(choices, algorithm),
            reason="\n".join(reason),
        )


def _host_tables(
    tables: Mapping[str, ProfiledTable],
    found: Mapping[str, ModelTable],
    sizes: Mapping[str, TableSizes],
    *,
    world_size: int,
    batch_size: int,
    fused: Mapping[str, Mapping[str, Any]],
    algorithm: CacheAlgorithm,
) -> list[HostTable]:
    """The tables, row-wise over `world_size` ranks, with `world_size * batch_size` samples in a
    step."""
    made = []
    for name, table in tables.items():
        rows = table.rows
        shards = TableShards.of(
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
                    fused=fused[name],
                    algorithm=algorithm,
                ),
                curve=hit_curve(shards, algorithm),
                rows=shards.rows,
                accessed=shards.accessed,
            )
        )
    return made


def _widest(found: Mapping[str, ModelTable], name: str, *, coalesced: bool) -> int:
    """The dim of the widest table that may share the kernel. Bags that are summed share it with all
    tables of their collection; tables whose rows are sent all have the same dim."""
    own = found[name]
    if coalesced or not own.pooled:
        return own.dim
    return max(table.dim for table in found.values() if table.module == own.module)


def _constraints(
    choices: Mapping[str, KernelChoice], algorithm: CacheAlgorithm
) -> dict[str, TableConstraint]:
    """The choices as constraints. All of them name the algorithm, so that tables share kernels
    whether or not they have a cache."""
    return {
        name: TableConstraint(
            sharding_types=("row_wise",),
            compute_kernels=(choice.kernel,),
            load_factor=choice.load_factor,
            cache_algorithm=algorithm,
        )
        for name, choice in choices.items()
    }


def _check_host_memory(choices: Mapping[str, KernelChoice], host_memory_gb: float | None) -> None:
    """Raises `CapabilityError` if tables need more than a rank's share of host memory."""
    from torchrec.distributed.planner.constants import DDR_CAP

    needed = sum(choice.host_bytes for choice in choices.values()) / GB
    has = DDR_CAP / GB if host_memory_gb is None else host_memory_gb
    if needed > has:
        raise CapabilityError(
            f"cache: tables of {needed:.3g} GB a rank are to lie in host memory, of which a rank "
            f"has {has:.3g} GB. Set topology.host_memory_gb to what it has, or train on more ranks."
        )


def _lines(
    choices: Mapping[str, KernelChoice],
    tables: Mapping[str, ProfiledTable],
    sizes: Mapping[str, TableSizes],
    *,
    capacity: float,
    algorithm: CacheAlgorithm,
) -> Iterator[str]:
    """One line per table. The hits of replicas are shares of lookups; those of caches are shares of
    the remaining rows of a step."""
    yield (
        f"tables in host memory: {max(capacity, 0) / GB:.3g} GB of a rank's device are left for "
        f"them and their caches ({algorithm}), beside replicas and a batch"
    )
    shown: list[Sequence[str]] = [HEADER]
    for name, choice in choices.items():
        shown.append(
            (
                name,
                choice.kernel,
                f"{choice.load_factor:.4g}" if choice.load_factor else "-",
                f"{choice.slots:,}",
                in_share(
                    tables[name].rows.coverage(sizes[name].replicated),
                    tables[name].rows.interval(sizes[name].replicated),
                ),
                f"{choice.hit_rate:.1%}" if choice.load_factor else "-",
                f"{choice.device_bytes / 1e6:.3g}",
                f"{choice.host_bytes / 1e6:.3g}",
            )
        )
    yield from aligned(shown)
