"""Nodes, ranks and the five collectives that prices depend on: a topology made whole."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from recd_plugins.errors import CapabilityError
from recd_plugins.planning.topology import GB, Link, Topology

__all__ = ["Cluster"]

INTRA_NODE_GBPS = 600.0
INTER_NODE_GBPS = 12.5
"""TorchRec's defaults (`INTRA_NODE_BANDWIDTH`, `CROSS_NODE_BANDWIDTH` of its planner)."""
LATENCY_MS = 0.02
"""Of a collective that nobody measured."""
BESIDE = 0.5
"""Of what could be done beside an exchange, where nobody measured it."""
NO_LINK = Link(gbps=1e6)
"""Of a collective over one rank: nothing moves."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """N nodes of W ranks, U = N * W in all, and how fast they exchange rows."""

    n_nodes: int
    ranks_per_node: int
    a2a_global: Link = NO_LINK
    a2a_intra: Link = NO_LINK
    a2a_cross: Link = NO_LINK
    ar_global: Link = NO_LINK
    ar_cross: Link = NO_LINK
    gather_gbps: float = 1e6
    unique_ns: float = 0.0
    op_us: float = 0.0
    beside: float = BESIDE
    overlap: float = 0.0

    @property
    def world_size(self) -> int:
        return self.n_nodes * self.ranks_per_node

    def local_ms(self, moved: Any, coalesced: Any) -> Any:
        """Milliseconds to read and write so many bytes of rows, and to make so many ids unique."""
        return moved / (self.gather_gbps * GB) * 1000 + coalesced * self.unique_ns * 1e-6

    @classmethod
    def of(cls, topology: Topology, world_size: int) -> Cluster:
        """What the topology says; where it is silent on a collective, what its links allow.

        With intra and inter the bandwidths of a rank's two links, a payload S of a rank takes
        - all-to-all: the share of it that goes over each link, the slower one counts; over the
          ranks of one place, where as much leaves the node, as over all;
        - all-reduce across N nodes: 2(N - 1)/N S / inter;
        - all-reduce over all: 2(W - 1)/W S / intra, and of its W-th part the one across nodes.
        """
        w = ranks_per_node(topology, world_size)
        n = world_size // w
        intra = topology.intra_node_gbps or INTRA_NODE_GBPS
        inter = topology.inter_node_gbps or INTER_NODE_GBPS
        across = 2 * (n - 1) / n / inter
        links: dict[str, Any] = {
            "a2a_global": _link(max((world_size - w) / inter, (w - 1) / intra) / world_size),
            "a2a_intra": _link((w - 1) / w / intra),
            "ar_global": _link(2 * (w - 1) / w / intra + across / w),
            "ar_cross": _link(across),
        }
        said = (*links, "gather_gbps", "unique_ns", "op_us", "beside", "overlap")
        links |= {name: value for name in said if (value := getattr(topology, name)) is not None}
        links["a2a_cross"] = topology.a2a_cross or (links["a2a_global"] if n > 1 else NO_LINK)
        return cls(n_nodes=n, ranks_per_node=w, **links)


def ranks_per_node(topology: Topology, world_size: int) -> int:
    """W: the topology's, else the launcher's, else all ranks."""
    said = topology.ranks_per_node or int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    w = min(said, world_size)
    if world_size % w:
        raise CapabilityError(
            f"topology: {world_size} ranks are no whole nodes of {w}. Set "
            "topology.ranks_per_node to a divisor, or train on another number of ranks."
        )
    return w


def _link(seconds_per_gb: float) -> Link:
    if seconds_per_gb <= 0:
        return NO_LINK
    return Link(gbps=1 / seconds_per_gb, latency_ms=LATENCY_MS)
