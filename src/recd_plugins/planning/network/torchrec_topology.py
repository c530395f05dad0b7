"""A topology as TorchRec's planner takes it."""

from __future__ import annotations

from typing import Any

from recd_plugins.planning.topology import GB, Topology

__all__ = ["torchrec_topology"]


def torchrec_topology(topology: Topology, world_size: int, device: str) -> Any:
    from torchrec.distributed.planner.types import (
        HardwareConfig,
        KernelConfig,
        TopologyFactory,
        TrainerConfig,
    )

    intra, inter = topology.intra_node_gbps, topology.inter_node_gbps
    return TopologyFactory.create_topology(
        TrainerConfig(
            world_size=world_size,
            local_world_size=topology.ranks_per_node,
            hbm_cap_bytes=_bytes(topology.device_memory_gb),
            ddr_cap_bytes=_bytes(topology.host_memory_gb),
        ),
        # TorchRec counts bandwidth in bytes per millisecond.
        HardwareConfig(
            intra_host_bw=None if intra is None else intra * GB / 1000,
            inter_host_bw=None if inter is None else inter * GB / 1000,
        ),
        KernelConfig(
            compute_device=device,
            use_hardware_based_bandwidth=not (intra is None and inter is None),
        ),
    )


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * GB)
