"""From costs to milliseconds: what each collective takes, and the rank's own work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.cost import Cost
from recd_plugins.planning.topology import GB

__all__ = ["COLLECTIVES", "marginal_ms", "milliseconds", "overlapped"]

COLLECTIVES = ("a2a_global", "a2a_intra", "ar_global", "ar_cross")
BESIDE = ("a2a_intra", "ar_cross")
"""Those that other links carry than the global all-to-all's."""


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


def overlapped(each: Mapping[str, float], cluster: Cluster) -> float:
    """Of a step in which they follow each other, but for the share of a2a_intra and ar_cross
    that runs beside a2a_global: overlap * min(a2a_global, a2a_intra + ar_cross)."""
    beside = min(each["a2a_global"], sum(each[name] for name in BESIDE))
    return sum(each.values()) - cluster.overlap * beside


def marginal_ms(cost: Cost, cluster: Cluster) -> Any:
    """Of each row by its bytes alone: what one row more or less changes, as long as what may
    run beside the global all-to-all is shorter."""
    total = cluster.local_ms(cost.local, cost.coalesced)
    for name in COLLECTIVES:
        share = 1 - cluster.overlap if name in BESIDE else 1.0
        total = total + getattr(cost, name) * (share * 1000 / (getattr(cluster, name).gbps * GB))
    return total
