"""The topology: the devices and links of a cluster as a user states them, or as a file does.

`cluster` makes it whole, as prices are by it."""

from __future__ import annotations

import dataclasses
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
    "PRESETS",
    "Link",
    "Topology",
    "load_topology",
    "ranks_per_node",
    "save_topology",
    "stated",
    "states_links",
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
    during the global all-to-all, as far as that lasts; by default 0. Either this or `beside`
    counts, whichever saves more."""


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


NO_SPEEDS = {"device", "ranks_per_node", "device_memory_gb", "host_memory_gb"}
"""The options of a topology that say what there is, and not how fast it is."""


def stated(topology: Topology) -> dict[str, Any]:
    """The values of a topology, as registry.yaml writes it: without those that it is silent on."""
    return dataclasses.asdict(
        topology, dict_factory=lambda items: {k: v for k, v in items if v is not None}
    )


def states_links(topology: Topology) -> bool:
    """Whether it says how fast anything is, not just what devices and memory there are."""
    return not stated(topology).keys() <= NO_SPEEDS


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
