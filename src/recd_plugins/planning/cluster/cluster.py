"""The cluster as prices have it: a topology, made whole by TorchRec's rates and by what stands for
whatever nobody measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from recd_plugins.planning.cluster.topology import GB, Link, Topology, ranks_per_node

__all__ = ["INTER_NODE_GBPS", "INTRA_NODE_GBPS", "Cluster"]

INTRA_NODE_GBPS = 600.0
INTER_NODE_GBPS = 12.5
"""TorchRec's defaults (`INTRA_NODE_BANDWIDTH`, `CROSS_NODE_BANDWIDTH` of its planner)."""
LATENCY_MS = 0.02
"""The latency of a collective that nobody measured."""
BESIDE = 0.5
"""The share of what could be done beside an exchange, where nobody measured it."""
MAPPED_NS = 20_000.0
"""The time of a row in a mapped file, where nobody measured it: in the benchmark, a step on a table
of twice the memory took 43 ms longer for at most 2,250 rows that replicas missed."""
DEVICE = (
    "gather_gbps",
    "chunk_gbps",
    "unique_ns",
    "update_ns",
    "marks_ns",
    "mapped_ns",
    "scattered",
    "op_us",
    "crowded",
    "link_shared",
)
"""What a topology says of a rank's own work, of a backend's, and of who shares what."""
MARKS = 64
"""Bytes of chunks that take as long as the marks of a row, where nobody measured these: two million
rows took 8 ms on a CPU that passes chunks at 14 to 20 GB/s."""
NO_LINK = Link(gbps=1e6)
"""The link of a collective over one rank: nothing moves."""


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
    ring: Link | None = None
    """All-reduce over all ranks by gloo, which makes one ring of them, wherever they are; None of
    other backends."""
    gather_gbps: float = 1e6
    chunk_gbps: float = 1e6
    unique_ns: float = 0.0
    update_ns: float = 0.0
    marks_ns: float = 0.0
    mapped_ns: float = MAPPED_NS
    scattered: float = 1.0
    op_us: float = 0.0
    crowded: float = 1.0
    link_shared: float = 1.0
    beside: float = BESIDE
    overlap: float = 0.0
    unmeasured: tuple[str, ...] = ()
    """What nobody measured, each in words, and what stands for it."""
    side_stream: bool = True
    """Whether replicas are updated beside what backward waits for: on a CPU they are not."""
    pauses: bool = False
    """Whether the links between nodes pause during an exchange, so that another one is sent
    meanwhile: so they do with gloo, for the two ways of a connection take turns. Two ranks have one
    connection, on which exchanges wait for each other."""

    @property
    def world_size(self) -> int:
        return self.n_nodes * self.ranks_per_node

    @property
    def reduced_between_nodes(self) -> float:
        """Bytes that leave nodes, of all together, for each of an all-reduce over all ranks: 2 N
        (U - 1) / U, for a ring over them leaves every node once. None where there is one node."""
        n, u = self.n_nodes, self.world_size
        return 2 * n * (u - 1) / u if n > 1 else 0.0

    def once_a_node_ms(self, size: float, carried: float = 1.0) -> float:
        """Milliseconds of an all-reduce of so many bytes that cross nodes once: two all-to-alls
        within each node, and between them one across nodes of each rank's own part, which is
        `carried` there in so many of its bytes."""
        part = carried * size / self.ranks_per_node
        return float(2 * self.a2a_intra.ms(size) + self.ar_cross.ms(part))

    def crosses_once(self, size: float, carried: float = 1.0) -> bool:
        """Whether dense gradients of so many bytes are all-reduced so: by gloo, where several nodes
        have several ranks each, and where that takes less time than its ring."""
        if self.ring is None or self.n_nodes == 1 or self.ranks_per_node == 1 or not size:
            return False
        return self.once_a_node_ms(size, carried) < float(self.ring.ms(carried * size))

    def dense_between_nodes(self, size: float, carried: float = 1.0) -> float:
        """Bytes that leave nodes, of all together, for so many of dense gradients: 2 (N - 1) times
        as many where they cross nodes once, for each node sends 2 (N - 1) / N."""
        once = 2 * (self.n_nodes - 1)
        crosses_once = self.crosses_once(size, carried)
        return carried * size * (once if crosses_once else self.reduced_between_nodes)

    def local_ms(
        self,
        moved: Any,
        coalesced: Any,
        updated: Any = 0.0,
        summed: Any = 0.0,
        marked: Any = 0.0,
        paged: Any = 0.0,
    ) -> Any:
        """Milliseconds to read and write so many bytes of rows, to make so many ids unique, to
        apply the gradients of so many rows, to read and write so many bytes of chunks, for the
        marks of so many rows, and to have the disk read and write so many rows of mapped files."""
        seconds = moved / (self.gather_gbps * GB) + summed / (self.chunk_gbps * GB)
        each = coalesced * self.unique_ns + updated * self.update_ns
        each = each + marked * self.marks_ns + paged * self.mapped_ns
        return 1000 * seconds + each * 1e-6

    @classmethod
    def of(cls, topology: Topology, world_size: int) -> Cluster:
        """The cluster that the topology describes; where that is silent on a collective, its
        links count.

        With intra and inter the bandwidths of a rank's two links, a payload S of a rank takes
        - all-to-all: the share of it that goes over each link, the slower one counts; over the
          ranks of one place, where as much leaves the node, as over all;
        - all-reduce across N nodes: 2(N - 1)/N S / inter;
        - all-reduce over all: 2(W - 1)/W S / intra, and of its W-th part the one across nodes;
          gloo's ring, to which dense gradients' way over nodes is held: 2(U - 1)/U S / inter.
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
        stated = (*links, *DEVICE, "beside", "overlap")
        links |= {name: value for name in stated if (value := getattr(topology, name)) is not None}
        if topology.chunk_gbps is None and topology.gather_gbps is not None:
            links["chunk_gbps"] = topology.gather_gbps  # a file of before it was measured
        if topology.marks_ns is None and "chunk_gbps" in links:
            links["marks_ns"] = MARKS / (links["chunk_gbps"] * GB) * 1e9
        links["a2a_cross"] = topology.a2a_cross or (links["a2a_global"] if n > 1 else NO_LINK)
        on_cpu = topology.device == "cpu"
        measured = topology.a2a_global is not None and topology.ar_global is not None
        around = _link(2 * (world_size - 1) / world_size / inter)
        return cls(
            unmeasured=tuple(_unmeasured(topology, world_size)),
            ring=(topology.ar_global or around) if on_cpu else None,
            n_nodes=n,
            ranks_per_node=w,
            side_stream=not on_cpu,
            pauses=on_cpu and measured and n > 1 and world_size > 2,
            **links,
        )


def _unmeasured(topology: Topology, world_size: int) -> Iterator[str]:
    if world_size > 1 and topology.a2a_global is None:
        bandwidths = topology.intra_node_gbps or topology.inter_node_gbps
        whose = "what the topology says" if bandwidths else "TorchRec's default, of GPUs,"
        yield f"the links ({whose} stands for them)"
    if topology.gather_gbps is None:
        yield "lookups and small operations (they count as next to nothing)"


def _link(seconds_per_gb: float) -> Link:
    if seconds_per_gb <= 0:
        return NO_LINK
    return Link(gbps=1 / seconds_per_gb, latency_ms=LATENCY_MS)
