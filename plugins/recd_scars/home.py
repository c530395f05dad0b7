"""The homes that tables can have: on which devices, and how the planner behind counts their
memory."""

from __future__ import annotations

from typing import Literal

from recd_plugins.api import CapabilityError, Topology
from recd_plugins.api.planning import boundless

__all__ = ["Home", "check_home", "seen_from"]

Home = Literal["memory", "mapped", "host"]


def check_home(home: Home, device: Literal["cpu", "cuda"]) -> None:
    """`CapabilityError` where tables cannot lie there."""
    if home == "mapped" and device == "cuda":
        raise CapabilityError(
            "cache.home: mapped tables are for the CPU, but the tables live on CUDA. Set `home: "
            "host`: TorchRec's UVM kernels then serve from host memory what does not fit into the "
            "device."
        )
    if home == "host" and device == "cpu":
        raise CapabilityError(
            "cache.home: host is for CUDA, where TorchRec's UVM kernels serve tables from host "
            "memory, but the tables live on the CPU. Set `home: memory`; or `home: mapped` for "
            "tables larger than that. To plan for CUDA from here, name a topology whose device is "
            "cuda."
        )


def seen_from(home: Home, topology: Topology) -> Topology:
    """The topology by which the planner behind counts a rank's memory.

    Mapped tables take no memory. For tables in host memory we count the device's memory ourselves:
    it holds replicas and caches, which TorchRec does not know of.
    """
    if home == "mapped":
        return boundless(topology, "host")
    if home == "host":
        return boundless(topology, "device")
    return topology
