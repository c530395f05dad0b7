"""What the cluster is: what a planner needs to know of devices and links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from recd_plugins.config import Config, Range

__all__ = ["PRESETS", "Topology"]


@dataclass(frozen=True, kw_only=True)
class Topology(Config):
    """Devices and links as TorchRec's planner counts them; `PRESETS` names common ones."""

    device: Literal["cpu", "cuda"] | None = None
    """What the tables live on; by default the training device."""
    ranks_per_node: Annotated[int, Range(ge=1)] | None = None
    """Ranks that share a node; by default what the launcher says, else all of them."""
    device_memory_gb: Annotated[float, Range(gt=0)] | None = None
    """Memory of one accelerator for tables; by default TorchRec's (32 GB)."""
    host_memory_gb: Annotated[float, Range(gt=0)] | None = None
    """Host memory of one rank for tables; by default TorchRec's (128 GB)."""
    intra_node_gbps: Annotated[float, Range(gt=0)] | None = None
    """Bandwidth between two ranks of a node, GB/s; by default TorchRec's."""
    inter_node_gbps: Annotated[float, Range(gt=0)] | None = None
    """Bandwidth between nodes per rank, GB/s; by default TorchRec's."""


PRESETS: dict[str, Topology] = {"local": Topology()}
"""What `topology: <name>` in registry.yaml means."""
