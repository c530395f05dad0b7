"""How the tables of a plan are served from host memory, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recd_plugins.api.planning import CacheAlgorithm, Ledger, ModelTable, TableConstraint
from recd_scars.uvm.choice import Choice, choose
from recd_scars.uvm.report import lines
from recd_scars.uvm.tables import check_host_memory, constraints, host_tables

__all__ = ["Served"]


@dataclass(frozen=True, kw_only=True)
class Served:
    """One plan's tables."""

    capacity: float
    """Bytes of a rank's device that are left for tables and their caches."""
    choices: Mapping[str, Choice]
    kernels: Mapping[str, TableConstraint]
    """The same, for the planner of the canonical tables."""
    said: str

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        found: Mapping[str, ModelTable],
        *,
        capacity: float,
        sample_bytes: float,
        fused: Mapping[str, Any],
        algorithm: CacheAlgorithm,
        host_memory_gb: float | None,
    ) -> Served:
        """Of a device with so many bytes for replicas, a batch and tables."""
        prices = ledger.prices
        tables = {name: one.table for name, one in ledger.tables.items()}
        sizes = {name: one.sizes for name, one in ledger.tables.items()}
        replicas = sum(one.sizes.replicated * one.table.width for one in ledger.tables.values())
        left = capacity - prices.k * replicas - prices.batch_size * sample_bytes
        choices = choose(
            host_tables(
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
        check_host_memory(choices, host_memory_gb)
        said = lines(choices, tables, sizes, capacity=left, algorithm=algorithm)
        return cls(
            capacity=left,
            choices=choices,
            kernels=constraints(choices, algorithm),
            said="\n".join(said),
        )
