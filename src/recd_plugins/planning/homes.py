"""The homes of tables where memory has no room for all: which lie in mapped files, and why.

A page of a mapped file is read and written once a step for each different row of it that the step
looks up. So those tables leave memory first of which a step looks up the fewest rows a byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from recd_plugins.errors import RecdError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.cost import state_bytes
from recd_plugins.planning.explain.words import aligned, in_bytes
from recd_plugins.planning.model_tables import ModelTable
from recd_plugins.planning.topology import GB, Cluster, Topology

__all__ = ["MayLeave", "boundless", "fewest", "in_words", "less", "may_leave"]

T = TypeVar("T")

BOUNDLESS_GB = 1e6


@dataclass(frozen=True, kw_only=True)
class MayLeave:
    """A table that may leave memory."""

    name: str
    size: float
    """Bytes of its rows and of their optimizer states, on all ranks together."""
    touched: float
    """Its different rows that a step of all ranks looks up."""

    def ms(self, cluster: Cluster) -> float:
        """Milliseconds of a step that a mapped file takes of a rank, on average."""
        return self.touched / cluster.world_size * cluster.mapped_ns * 1e-6


def may_leave(
    tables: Mapping[str, ModelTable],
    profile: Profile,
    fused: Mapping[str, Mapping[str, Any]],
    *,
    batch_size: int,
    world_size: int,
) -> list[MayLeave]:
    """The tables that may lie in mapped files, the cheapest there first.

    A table that row-wise would have no row on some rank may not, for fbgemm looks nothing up in
    files without rows; nor one whose optimizer (`fused`) mapped files have no room for.
    """
    from recd_plugins.compat.host_buffers import state_width

    found = []
    for name, table in tables.items():
        own, rows = fused[name], table.num_rows
        if -(-rows // world_size) * (world_size - 1) >= rows or state_width(own) is None:
            continue
        width = table.dim * table.element_bytes + state_bytes(own, table.dim)
        touched = profile[name].appearing(batch_size * world_size)
        found.append(MayLeave(name=name, size=float(rows * width), touched=touched))
    return sorted(found, key=lambda one: (one.touched / one.size, -one.size))


def fewest(attempt: Callable[[int], T], least: int, most: int) -> tuple[int, T]:
    """The fewest tables, from `least` to `most` of them, with which `attempt` raises no
    `RecdError`, and what it returns; the error that it raises with the most where it always does.

    What has room with some has room with more.
    """
    found = attempt(most)
    while least < most:
        middle = (least + most) // 2
        try:
            found, most = attempt(middle), middle
        except RecdError:
            least = middle + 1
    return most, found


def boundless(topology: Topology) -> Topology:
    """The topology, with host memory for any table."""
    return dataclasses.replace(topology, host_memory_gb=BOUNDLESS_GB)


def less(topology: Topology, taken: float) -> Topology:
    """The topology, with so many bytes of a rank's host memory taken; `RegistryError` where there
    are not so many."""
    from torchrec.distributed.planner.constants import DDR_CAP

    has = topology.host_memory_gb or DDR_CAP / GB
    return dataclasses.replace(topology, host_memory_gb=has - taken / GB)


def in_words(
    tables: Sequence[MayLeave], mapped: Collection[str], cluster: Cluster
) -> Iterator[str]:
    """A line for each table: where it is at home, and what a mapped file takes, or would take."""
    yield (
        "homes: memory has no room for all tables; those lie in mapped files of which a step looks "
        f"up the fewest different rows a byte, each of which takes {cluster.mapped_ns:,.0f} ns "
        "there (topology.mapped_ns)"
    )
    head = ("table", "home", "size", "rows a step", "of each MiB", "ms a step if mapped")
    rows = [
        (
            one.name,
            "mapped" if one.name in mapped else "memory",
            in_bytes(one.size),
            f"{one.touched:,.0f}",
            f"{one.touched / one.size * 2**20:.3g}",
            f"{one.ms(cluster):.3g}",
        )
        for one in tables
    ]
    yield from aligned([head, *rows])
