"""Devices by their data sheets, and clusters of them. Nothing here is measured."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB, PRESETS

__all__ = ["A100", "FLEXSHARD", "H100", "ZIONEX", "DeviceSheet"]

GEMM_SHARE, STREAM_SHARE, GATHER_SHARE = 0.4, 0.7, 0.5
"""Assumed: how much of a sheet's rate matrix products get, memory that is read in order, and rows
at random places."""
UNIQUE_NS, OP_US = 2.0, 10.0
"""Assumed: to sort an id among others, and to launch a kernel from Python."""


@dataclass(frozen=True, kw_only=True)
class DeviceSheet:
    """A GPU as its maker states it, in nodes of eight."""

    preset: str
    """The topology's name, whose links are those of data sheets too."""
    tflops: float
    """Of dense matrix products in TF32."""
    memory_gbps: float
    """Bytes of its memory in a second, over 10^9."""

    def seconds(self, flops: float, moved: float) -> float:
        """Seconds of so many operations of matrix products, and of bytes read or written beside
        them, one after the other."""
        return flops / (self.tflops * 1e12 * GEMM_SHARE) + moved / (
            self.memory_gbps * 1e9 * STREAM_SHARE
        )

    def cluster(self, n_nodes: int) -> Cluster:
        """So many nodes, with the default of what hides: half of what could, for half of what
        replicas take is forward's. The simulation has that without being given it."""
        known = dataclasses.replace(
            PRESETS[self.preset],
            gather_gbps=self.memory_gbps * 1e9 * GATHER_SHARE / GB,
            unique_ns=UNIQUE_NS,
            op_us=OP_US,
        )
        return Cluster.of(known, n_nodes * (known.ranks_per_node or 1))

    @property
    def memory(self) -> float:
        """Bytes of a device."""
        return (PRESETS[self.preset].device_memory_gb or 0) * GB


A100 = DeviceSheet(preset="a100_dgx", tflops=156, memory_gbps=2039)
H100 = DeviceSheet(preset="h100_dgx", tflops=494.5, memory_gbps=3350)
ZIONEX = DeviceSheet(preset="a100_zionex", tflops=156, memory_gbps=1555)
FLEXSHARD = DeviceSheet(preset="flexshard_a100", tflops=156, memory_gbps=1555)
