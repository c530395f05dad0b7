"""The memory of a rank that cached rows and the batch share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.api import Topology
from recd_plugins.api.planning import GB, ModelTable, model_tables, state_bytes
from recd_scars.uvm.kernel_bytes import row_wise_state

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DeviceMemory"]

WITH_ADAM = 4
"""How often a dense parameter is there: weight, gradient and the two moments of Adam."""
FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """M, in bytes, and where it comes from."""

    capacity: float
    """The bytes that neither tables nor dense parameters take."""
    reason: str

    @classmethod
    def of(
        cls,
        model: nn.Module,
        topology: Topology,
        world_size: int,
        *,
        device: Literal["cpu", "cuda"],
        memory_gb: float | None,
        reserve: float,
        fused: Mapping[str, Mapping[str, Any]] | None,
        hosted: Collection[str] = (),
    ) -> DeviceMemory:
        """A rank's memory, less what it holds anyway.

        - It holds its share of all tables with the states of their optimizer, by the `fused` params
          of each; none if tables are not in memory, and of `hosted` ones only what is on the device
          all the same.
        - It holds the dense parameters with their gradients and Adam's two moments.
        - The share `reserve` of an accelerator's memory is kept for what nobody counts, unless
          `memory_gb` says how much a rank has.
        """
        on = topology.device or device
        gigabytes, whose = _memory(topology, on, memory_gb)
        kept = reserve if on == "cuda" and memory_gb is None else 0.0
        share = 0.0
        if fused is not None:
            for one in model_tables(model).values():
                width = _row_bytes(one, fused.get(one.name, {}), hosted=one.name in hosted)
                share += one.num_rows * width / world_size
        dense = FLOAT_BYTES * WITH_ADAM * _dense_numbers(model)
        return cls(
            capacity=(1 - kept) * gigabytes * GB - share - dense,
            reason=f"{gigabytes:g} GB ({whose}) less "
            + (f"{kept:.0%} (sharding.reserve) and " if kept else "")
            + f"{(share + dense) / GB:.3g} GB of tables and dense parameters",
        )


def _row_bytes(table: ModelTable, fused: Mapping[str, Any], *, hosted: bool) -> int:
    """The bytes that a row, and the state of its optimizer, take on the device."""
    state = state_bytes(fused, table.dim)
    if hosted:
        return state if row_wise_state(fused) else 0
    return table.dim * table.element_bytes + state


def _dense_numbers(model: nn.Module) -> int:
    """The numbers of all parameters that are no tables."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    collections = (EmbeddingBagCollection, EmbeddingCollection)
    # Two tables may have one parameter, which the model has once.
    embedded = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, collections)
        for parameter in module.parameters()
    }
    return sum(one.numel() for one in model.parameters() if id(one) not in embedded)


def _memory(topology: Topology, device: str, memory_gb: float | None) -> tuple[float, str]:
    if memory_gb is not None:
        return memory_gb, "cache.memory_gb"
    option = "device_memory_gb" if device == "cuda" else "host_memory_gb"
    stated: float | None = getattr(topology, option)
    if stated is not None:
        return stated, f"topology.{option}"
    from torchrec.distributed.planner.constants import DDR_CAP, HBM_CAP

    return (HBM_CAP if device == "cuda" else DDR_CAP) / GB, f"TorchRec's default {option}"
