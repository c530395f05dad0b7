"""The cluster: devices and links as a user states them, and a topology made whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from recd_plugins.config import Config, Range, parse
from recd_plugins.config.yaml_text import read_yaml, text_of, to_yaml
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.launch.environment import ranks_of_a_node
from recd_plugins.notices import Empty
from recd_plugins.storage.whole_file import write_whole

__all__ = [
    "GB",
    "INTER_NODE_GBPS",
    "INTRA_NODE_GBPS",
    "PRESETS",
    "Cluster",
    "Link",
    "Topology",
    "load_topology",
    "ranks_per_node",
    "save_topology",
    "stated",
    "topology_and_notices",
]

GB = 1 << 30
"""Bytes of a GB, of memory and of bandwidth, as TorchRec counts them."""

# A figure beyond these bounds is a slip of the pen, and prices made of it would be infinite or NaN.
Gbps = Annotated[float, Range(ge=1e-9, le=1e9)]
"""GB a second. A `Link` that is made of two of them may be ten times as slow or as fast."""
Gigabytes = Annotated[float, Range(ge=1e-9, le=1e9)]
"""GB of a rank, from a byte on."""
OfOne = Annotated[float, Range(ge=0, le=1e12)]
"""Nanoseconds or microseconds of one id, row or operation."""
Times = Annotated[float, Range(ge=1, le=1e6)]
"""How many times as long something takes."""


@dataclass(frozen=True, kw_only=True)
class Link(Config):
    """A collective as each rank sees it: latency_ms + payload / gbps."""

    gbps: Annotated[float, Range(ge=1e-10, le=1e10)]
    """The bandwidth in GB of a rank's payload per second; the payload includes what the rank keeps
    to itself."""
    latency_ms: Annotated[float, Range(ge=0, le=1e9)] = 0.0
    """The milliseconds of a call that carries next to nothing. It is measured amid a step's work,
    where ranks come to the call one after the other."""

    def ms(self, payload: Any) -> Any:
        """Milliseconds of one call with so many bytes: a number, or an array of them."""
        return self.latency_ms + payload / (self.gbps * GB) * 1000


@dataclass(frozen=True, kw_only=True)
class Topology(Config):
    """Devices and links as planners count them; `PRESETS` names common ones.

    `recd topology measure` finds what a running cluster's collectives and memory do.
    """

    device: Literal["cpu", "cuda"] | None = None
    """The device that holds the tables; by default the training device."""
    ranks_per_node: Annotated[int, Range(ge=1)] | None = None
    """The number of ranks that share a node; by default as the launcher reports, or else all of
    them."""
    device_memory_gb: Gigabytes | None = None
    """The memory of one accelerator for tables, in GB; by default TorchRec's (32 GB)."""
    host_memory_gb: Gigabytes | None = None
    """The host memory of one rank for tables, in GB; by default TorchRec's (128 GB)."""
    intra_node_gbps: Gbps | None = None
    """The bandwidth between two ranks of a node, in GB/s; by default TorchRec's."""
    inter_node_gbps: Gbps | None = None
    """The bandwidth between nodes per rank, in GB/s; by default TorchRec's."""
    both_ways: bool | None = None
    """Whether exchanges between nodes send and receive at once, where gloo does one after the
    other; by default they do not. `recd topology measure` finds out which is faster."""
    a2a_global: Link | None = None
    """The link of an all-to-all over all ranks; by default what the two bandwidths above allow."""
    a2a_intra: Link | None = None
    """The link of an all-to-all within each node, in all nodes at once; by default what the two
    bandwidths allow."""
    a2a_cross: Link | None = None
    """The link of an all-to-all over the ranks of one place in each node, in all places at once; by
    default `a2a_global`."""
    ar_global: Link | None = None
    """The link of an all-reduce over all ranks; by default what the two bandwidths allow."""
    ar_cross: Link | None = None
    """The link of an all-reduce over the ranks of one place in each node, in all places at once; by
    default what the two bandwidths allow."""
    gather_gbps: Gbps | None = None
    """The rate in GB/s at which a rank reads or writes embedding rows at random places; by default
    their time is not counted."""
    chunk_gbps: Gbps | None = None
    """The rate in GB/s at which operations read and write chunks of rows one after another, as they
    sum the gradients of replicas and step their rows. By default it is gather_gbps."""
    unique_ns: OfOne | None = None
    """The nanoseconds to coalesce one id; by default they are not counted."""
    update_ns: OfOne | None = None
    """The nanoseconds to apply the gradients of one row of a sequence, on a CPU where a job looks
    up ids as bags of one (without `train.bags_of_one` fbgemm's kernel takes microseconds). By
    default, and on a GPU, only the row's bytes count."""
    marks_ns: OfOne | None = None
    """The nanoseconds that a rank takes in every step for the marks of one row with replicas,
    touched or not: it makes, packs, counts and searches them. By default, and on a GPU, they are
    what 64 bytes of chunks take."""
    mapped_ns: OfOne | None = None
    """The nanoseconds that each different row of a step takes longer in a mapped file than in
    memory, as the disk reads and writes its page and that of its optimizer state. By default they
    are 20,000, as `python -m benchmarks.scars` measured on its disk; `recd topology measure
    --mapped-folder` measures yours."""
    scattered: Times | None = None
    """The time of a reduce-scatter and an all-gather of a payload together, divided by that of an
    all-reduce; by default 1. With gloo it is 1.5, since gloo reduces the whole payload on every
    rank."""
    op_us: OfOne | None = None
    """The microseconds of one operation on some thousand ids, with the Python around it; by default
    they are not counted. Tiers take hundreds of such operations a step."""
    crowded: Times | None = None
    """The time of a rank's own work while all ranks work, divided by its time while the others
    wait; by default 1. It is 2 where four ranks share two processors."""
    link_shared: Times | None = None
    """The time of an all-to-all between nodes while all ranks of a node take part, divided by its
    time while one of each node does, with as many bytes a rank. It is 4 where four ranks share a
    node's link, and by default 1, as where each rank has a link of its own."""
    beside: Annotated[float, Range(ge=0, le=1)] | None = None
    """The part of a rank's own work that gets done during an exchange, as a share of what could; by
    default 0.5."""
    overlap: Annotated[float, Range(ge=0, le=1)] | None = None
    """The share of the all-to-alls within nodes, and of the all-reduces across them, that runs
    during the global all-to-all, as far as that lasts; by default 0. Of this and `beside`, the one
    that saves more counts."""


PRESETS: dict[str, Topology] = {
    "local": Topology(),
    # 8 A100 40 GB, NVLink 3 (300e9 B/s each way), 200 Gb/s RoCE each.
    "a100_zionex": Topology(
        device="cuda",
        ranks_per_node=8,
        device_memory_gb=40,
        host_memory_gb=190,
        intra_node_gbps=279,
        inter_node_gbps=23.3,
    ),
    # 8 A100 80 GB, NVSwitch (300e9 B/s each way), 200 Gb/s InfiniBand each.
    "a100_dgx": Topology(
        device="cuda",
        ranks_per_node=8,
        device_memory_gb=80,
        host_memory_gb=250,
        intra_node_gbps=279,
        inter_node_gbps=23.3,
    ),
    # 8 H100 80 GB, NVLink 4 (450e9 B/s each way), 400 Gb/s InfiniBand each.
    "h100_dgx": Topology(
        device="cuda",
        ranks_per_node=8,
        device_memory_gb=80,
        host_memory_gb=250,
        intra_node_gbps=419,
        inter_node_gbps=46.6,
    ),
    # The cluster of FlexShard's section 5, 4 nodes of 8: what its measured times imply (table 6).
    "flexshard_a100": Topology(
        device="cuda",
        ranks_per_node=8,
        device_memory_gb=40,
        host_memory_gb=190,
        intra_node_gbps=279,
        inter_node_gbps=23.3,
        a2a_global=Link(gbps=24),
        a2a_intra=Link(gbps=80),
        ar_global=Link(gbps=110, latency_ms=2.165),
        ar_cross=Link(gbps=11.4, latency_ms=1.5),
        overlap=1,  # as the paper counts: 308 ms -> 49 + 3 is its "nearly 6x"
    ),
}
"""What `topology: <name>` in registry.yaml means."""


def stated(topology: Topology) -> dict[str, Any]:
    """The values of a topology, as registry.yaml writes it: without those that it is silent on."""
    return dataclasses.asdict(
        topology, dict_factory=lambda items: {k: v for k, v in items if v is not None}
    )


def save_topology(topology: Topology, path: Path) -> None:
    """Write it as YAML; `topology: <path>` in registry.yaml reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, to_yaml(stated(topology)))


def load_topology(path: Path, where: str) -> Topology:
    """The topology that `save_topology` or a person wrote; `where` opens error messages."""
    return topology_and_notices(path, where)[0]


def topology_and_notices(path: Path, where: str) -> tuple[Topology, dict[str, Empty]]:
    """The same, and by its key a notice of each that has nothing behind it."""
    try:
        document = read_yaml(text_of(path), str(path))
    except FileNotFoundError:
        raise RegistryError(
            f"{path}: there is no such file to read. `recd topology measure` writes one; presets "
            "have no suffix.",
            where,
        ) from None
    except RegistryError as error:
        raise RegistryError(error.message, where) from None
    if not isinstance(document.values, dict):
        raise RegistryError(f"{path}: must hold a mapping of a topology's options.", where)
    notices = document.notices(path, f"{where}: ")
    topology: Topology = parse(Topology, document.values, f"{where}: {path}")
    return topology, dict(zip(document.empty, notices, strict=True))


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


def ranks_per_node(topology: Topology, world_size: int) -> int:
    """W: the topology's, else the launcher's, else all ranks."""
    stated = topology.ranks_per_node or ranks_of_a_node(world_size) or world_size
    w = min(stated, world_size)
    if world_size % w:
        raise CapabilityError(
            f"topology: {world_size} ranks do not fill whole nodes of {w}. Set "
            f"topology.ranks_per_node to a divisor, such as {world_size}, which makes all ranks "
            "one node; or train on another number of ranks."
        )
    return w


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
