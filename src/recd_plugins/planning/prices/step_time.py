"""From costs to milliseconds: what each collective takes, and the rank's own work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.cost import Cost
from recd_plugins.planning.topology import GB

__all__ = ["COLLECTIVES", "Lane", "marginal_ms", "milliseconds", "overlapped"]

COLLECTIVES = ("a2a_global", "a2a_intra", "a2a_cross", "ar_global", "ar_cross")
OVERLAPPING = ("a2a_intra", "ar_cross")
"""Those on other links than the global all-to-all, which a topology's `overlap` is of."""
NETWORK = ("a2a_global", "a2a_cross", "ar_global", "ar_cross")
"""Those that have bytes between nodes."""


def milliseconds(
    cost: Cost, cluster: Cluster, calls: Mapping[str, int], operations: int = 0
) -> dict[str, float]:
    """By collective: calls * latency + bytes / bandwidth; and `local`, the rank's own work:
    rows at the rate of random ones, ids that are made unique at theirs, and small operations."""
    found = {}
    for name in COLLECTIVES:
        link, called = getattr(cluster, name), calls.get(name, 0)
        found[name] = (called - 1) * link.latency_ms + float(link.ms(getattr(cost, name)))
    own = float(cluster.local_ms(cost.local, cost.coalesced))
    found["local"] = own + operations * cluster.op_us * 1e-3
    return found


@dataclass(frozen=True, kw_only=True)
class Lane:
    """What a step does for canonical tables, or for replicas."""

    traffic: float
    """Milliseconds that its bytes are on links between nodes."""
    own: float
    """Milliseconds of all else: latencies, exchanges in nodes, the rank's own work."""

    @classmethod
    def of(cls, cost: Cost, cluster: Cluster, calls: Mapping[str, int]) -> Lane:
        each = milliseconds(cost, cluster, calls)
        traffic = sum(
            each[name] - calls.get(name, 0) * getattr(cluster, name).latency_ms for name in NETWORK
        )
        return cls(traffic=traffic, own=sum(each.values()) - traffic)


def overlapped(each: Mapping[str, float], cluster: Cluster, home: Lane, replicas: Lane) -> float:
    """Milliseconds of a step in which all follow each other, but for what runs beside the rest.

    Replicas are updated in backward, beside the exchange of the canonical gradients, the half of
    canonical traffic: each has some of its own work done while the other is on the links. Of
    what could be, a topology says which share is:
        beside * (min(own of replicas, traffic of home / 2)
                  + min(own of home / 2, traffic of replicas))
    Or, if that is more, other links carry the share of a2a_intra and ar_cross that a topology
    says: overlap * min(a2a_global + a2a_cross, a2a_intra + ar_cross).
    """
    work = min(replicas.own, home.traffic / 2) + min(home.own / 2, replicas.traffic)
    links = min(each["a2a_global"] + each["a2a_cross"], sum(each[name] for name in OVERLAPPING))
    return sum(each.values()) - max(cluster.beside * work, cluster.overlap * links)


def marginal_ms(cost: Cost, cluster: Cluster) -> Any:
    """What one row more or less changes: its bytes at each link's rate, no latencies; as long as
    what overlaps the global all-to-all is shorter."""
    total = cluster.local_ms(cost.local, cost.coalesced)
    for name in COLLECTIVES:
        share = 1 - cluster.overlap if name in OVERLAPPING else 1.0
        total = total + getattr(cost, name) * (share * 1000 / (getattr(cluster, name).gbps * GB))
    return total
