"""Gloo ranks in the nodes of an emulated network, which live from one measurement to the next."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import pickle
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from benchmarks.cluster.network import DEVICE, Network

__all__ = ["ClusterFailed", "ClusterRanks"]

T = TypeVar("T")

PORT = 29500
"""Free in every network, for it is new."""
CLONE_NEWNET = 0x40000000
LIMIT = 600.0
"""Seconds, of a call and of a collective: all rounds of a setting are one call, of minutes; ranks
that take longer hang."""


class ClusterFailed(Exception):
    """A rank raised, died or was late."""


class ClusterRanks:
    """`ranks_per_node` ranks in each node, in one process group; a context manager."""

    def __init__(self, network: Network, ranks_per_node: int) -> None:
        self.network = network
        self.ranks_per_node = ranks_per_node
        self.world_size = network.n_nodes * ranks_per_node
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torchrec", "recd_plugins.tiers.sharder"])
        self._ranks: list[tuple[Any, Connection]] = []
        for rank in range(self.world_size):
            node = rank // ranks_per_node
            ours, theirs = context.Pipe()
            place = {
                "RANK": rank,
                "LOCAL_RANK": rank % ranks_per_node,
                "WORLD_SIZE": self.world_size,
                "LOCAL_WORLD_SIZE": ranks_per_node,
                "MASTER_ADDR": network.address(0),
                "MASTER_PORT": PORT,
                "GLOO_SOCKET_IFNAME": DEVICE,
                "OMP_NUM_THREADS": 1,
            }
            process = context.Process(
                target=_serve,
                args=(theirs, network.namespace(node), {k: str(v) for k, v in place.items()}),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._ranks.append((process, ours))

    def run(self, function: Callable[..., T], *args: Any, limit: float = LIMIT) -> list[T]:
        """`function(*args)` on every rank, by rank; it stands at the top of a module."""
        call = pickle.dumps((function, args))
        for _, connection in self._ranks:
            connection.send_bytes(call)
        ends = time.monotonic() + limit
        results = []
        for rank, (_, connection) in enumerate(self._ranks):
            try:
                if not connection.poll(max(0, ends - time.monotonic())):
                    raise ClusterFailed(f"rank {rank} was not done after {limit:g} s")
                done, result = pickle.loads(connection.recv_bytes())
            except (EOFError, ConnectionError):
                done, result = False, "died"
            if not done:
                raise ClusterFailed(f"rank {rank}: {result}")
            results.append(result)
        return results

    def __enter__(self) -> ClusterRanks:
        return self

    def __exit__(self, *error: object) -> None:
        for process, connection in self._ranks:
            connection.close()
            process.kill()
        for process, _ in self._ranks:
            process.join()


def _serve(connection: Connection, namespace: str, place: dict[str, str]) -> None:
    _enter(namespace)
    os.environ.update(place)
    import torch
    import torch.distributed as dist

    gc.freeze()  # what is imported, and would be walked in every collection
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT))
    while True:
        try:
            function, args = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            return
        try:
            answer = True, function(*args)
        except BaseException:
            answer = False, traceback.format_exc()
        connection.send_bytes(pickle.dumps(answer))


def _enter(namespace: str) -> None:
    """Move this process, which has one thread yet, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
