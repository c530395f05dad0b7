"""Milliseconds of a step: what a cost takes on the links and processors of a cluster, and which
parts run at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB
from recd_plugins.planning.prices.cost import COLLECTIVES, Cost

__all__ = [
    "Lane",
    "marginal_ms",
    "milliseconds",
    "overlapped",
    "own_work_ms",
    "working_meanwhile",
]

OVERLAPPING = ("a2a_intra", "ar_cross")
"""Collectives on other links than the global all-to-all's; a topology's `overlap` is about
these."""
NETWORK = ("a2a_global", "a2a_cross", "ar_global", "ar_cross")
"""Collectives that carry bytes between nodes."""


def milliseconds(
    cost: Cost, cluster: Cluster, calls: Mapping[str, int], operations: int = 0
) -> dict[str, float]:
    """Milliseconds by collective: calls * latency + bytes / bandwidth; and `local`, the rank's own
    work: rows at the rate of random ones, chunks, ids that are made unique, rows that are updated,
    marks and rows of mapped files at theirs, and small operations. Where ranks differ, all wait for
    the one that has the most, as far as it has the link to itself, or the processor where
    processors carry the bytes, as within nodes."""
    found = {}
    within = ("a2a_intra", *(COLLECTIVES if cluster.n_nodes == 1 else ()))
    for name in COLLECTIVES:
        link, carried = getattr(cluster, name), getattr(cost, name)
        shared = cluster.crowded if name in within else cluster.link_shared
        carried = _waited(carried, cluster, shared)
        found[name] = (calls.get(name, 0) - 1) * link.latency_ms + float(link.ms(carried))
    found["local"] = own_work_ms(cost, cluster) + operations * cluster.op_us * 1e-3
    return found


def own_work_ms(cost: Cost, cluster: Cluster) -> float:
    """Milliseconds until every rank has done its own work, at the rates of all ranks at work."""
    waited = (_waited(one, cluster, cluster.crowded) for one in cost.own_work)
    return float(cluster.local_ms(*waited))


def _waited(of_ranks: Any, cluster: Cluster, shared: float) -> Any:
    """What a step waits for of the work of processors, or of a link between nodes, where ranks
    differ: the most that one has.

    Where the ranks of a node share either, whoever has less leaves it to those that have more. So
    it is the mean of a node's ranks, or `1 / shared` of the most, whichever is more.
    """
    if isinstance(of_ranks, float) or not np.ndim(of_ranks):
        return of_ranks
    nodes = of_ranks.reshape(cluster.n_nodes, cluster.ranks_per_node)
    # ufuncs: each of numpy's functions around them takes longer than the few numbers.
    most = np.maximum.reduce
    return max(most(np.add.reduce(nodes, axis=1)) / nodes.shape[1], most(nodes, axis=None) / shared)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The work of a step for tables at home, or for replicas."""

    traffic: float
    """Milliseconds that its bytes are on links between nodes."""
    own: float
    """Milliseconds of all else: latencies, exchanges in nodes, the rank's own work."""

    @classmethod
    def of(
        cls, cost: Cost, cluster: Cluster, calls: Mapping[str, int], operations: int = 0
    ) -> Lane:
        each = milliseconds(cost, cluster, calls, operations)
        traffic = sum(
            each[name] - calls.get(name, 0) * getattr(cluster, name).latency_ms for name in NETWORK
        )
        return cls(traffic=traffic, own=sum(each.values()) - traffic)


def overlapped(each: Mapping[str, float], cluster: Cluster, home: Lane, replicas: Lane) -> float:
    """Milliseconds of a step in which all follow each other, but for what runs beside the rest.

    Replicas and home each have some of their own work done while the other is on the links. On a
    GPU replicas are updated on a stream of their own, beside the exchange of gradients with home,
    the half of its traffic. A topology says which share of that is done:
        own of replicas beside home = beside * min(own of replicas, traffic of home / 2)
    On a CPU there is one stream, on which a rank waits for home before or after all that it has
    to do for replicas. But where c ranks share a processor, others compute while one waits, in
    forward and in backward; within one node there are no links, and processors carry all:
        own of replicas beside home = (1 - 1 / c) * min(own of replicas, traffic of home)
    Either way a share of home's own work in backward is done beside replicas' exchange:
        own of home beside replicas = beside * min(own of home / 2, traffic of replicas)
    Or, if that is more, other links carry the share of a2a_intra and ar_cross that a topology
    says: overlap * min(a2a_global + a2a_cross, a2a_intra + ar_cross).
    """
    if cluster.side_stream:
        beside_home = cluster.beside * min(replicas.own, home.traffic / 2)
    else:
        shared = 1 - 1 / cluster.crowded if cluster.n_nodes > 1 else 0.0
        beside_home = shared * min(replicas.own, home.traffic)
    work = beside_home + cluster.beside * min(home.own / 2, replicas.traffic)
    links = min(each["a2a_global"] + each["a2a_cross"], sum(each[name] for name in OVERLAPPING))
    return sum(each.values()) - max(work, cluster.overlap * links)


def working_meanwhile(cluster: Cluster, own: float, traffic: float) -> float:
    """Milliseconds of a step in which a processor always works while bytes are between nodes, as
    far as its ranks have work: the least that a step takes for its bytes.

    Where c ranks share a processor and wait for bytes at different times, the others do their own
    work and their calls meanwhile:
        hidden = (1 - 1 / c) * min(own, traffic)
    """
    return own + traffic - (1 - 1 / cluster.crowded) * min(own, traffic)


def marginal_ms(cost: Cost, cluster: Cluster) -> Any:
    """The difference that one row more or less makes: its bytes at each link's rate, without
    latencies. It holds while what overlaps the global all-to-all is shorter."""
    total = cluster.local_ms(*cost.own_work)
    for name in COLLECTIVES:
        share = 1 - cluster.overlap if name in OVERLAPPING else 1.0
        total = total + getattr(cost, name) * (share * 1000 / (getattr(cluster, name).gbps * GB))
    return total
