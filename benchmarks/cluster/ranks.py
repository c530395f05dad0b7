"""Gloo ranks in the nodes of an emulated network, which live from one measurement to the next."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from benchmarks.cluster.network import DEVICE, Network
from recd_plugins.launch.environment import rank_environment
from recd_plugins.launch.ranks import Ranks, RankStart

__all__ = ["EMULATED", "ClusterRanks", "processors_of"]

T = TypeVar("T")

EMULATED = (
    "network namespaces of gloo ranks of one thread, each on its share of the processors, in "
    "order, where these can be shared out evenly"
)
"""What runs of it are measured on, for their conditions."""

PORT = 29500
"""Free in every network, for it is new."""
CLONE_NEWNET = 0x40000000
LIMIT = 600.0
"""Seconds, of a call and of a collective: all rounds of a setting are one call, of minutes; ranks
that take longer hang."""


class ClusterRanks:
    """`ranks_per_node` ranks in each node, in one process group; a context manager."""

    def __init__(self, network: Network, ranks_per_node: int) -> None:
        self.network = network
        self.ranks_per_node = ranks_per_node
        self.world_size = network.n_nodes * ranks_per_node
        self._ranks = Ranks([self._start(rank) for rank in range(self.world_size)])
        self.run(_join)

    def _start(self, rank: int) -> RankStart:
        return RankStart(
            environment=rank_environment(
                rank,
                self.world_size,
                ranks_per_node=self.ranks_per_node,
                address=self.network.address(0),
                port=PORT,
                interface=DEVICE,
            ),
            enter=partial(
                _enter,
                self.network.namespace(rank // self.ranks_per_node),
                processors_of(rank, self.world_size),
            ),
        )

    def run(self, function: Callable[..., T], *args: Any, limit: float = LIMIT) -> list[T]:
        """`function(*args)` on every rank, by rank; it stands at the top of a module."""
        return self._ranks.run(function, args, deadline=limit)

    def __enter__(self) -> ClusterRanks:
        return self

    def __exit__(self, *error: object) -> None:
        self._ranks.close()


def _join() -> None:
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT))


def processors_of(rank: int, world_size: int) -> list[int]:
    """The processors of this machine that a rank has, be it with its neighbours.

    Where there are as many as nodes, a node's are its own, as a machine's are: else a rank would
    wait for a peer which another node keeps from running. Of more nodes neighbours share some.
    Where they cannot be shared out evenly, each rank has all.
    """
    every = sorted(os.sched_getaffinity(0))
    if len(every) % world_size and world_size % len(every):
        return every
    first = rank * len(every) // world_size
    return every[first : max((rank + 1) * len(every) // world_size, first + 1)]


def _enter(namespace: str, processors: list[int]) -> None:
    """Move this process, which has one thread yet, into a network namespace, onto its
    processors."""
    os.sched_setaffinity(0, processors)
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
