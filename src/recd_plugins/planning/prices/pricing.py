"""Whose prices: those of FlexShard's paper, or of what our tiers do."""

from __future__ import annotations

from typing import Literal

from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.cost import Prices

__all__ = ["PAPER_K", "Pricing", "priced"]

Pricing = Literal["ours", "paper"]
"""paper: FlexShard as published (section 4). A row is sent once per access, and the gradients of
all replicas are all-reduced in every step, whatever it looked up: static communication is r over
all ranks for DP, r / W across nodes for Flex. ours: a rank asks its node for a row once, and only
the gradients of rows that a step touched are reduced."""

PAPER_K = 6.25
"""k of the paper's framework, as its table 5 implies it."""


def priced(pricing: Pricing, *, cluster: Cluster, batch_size: int, k: float) -> Prices:
    """The prices of one or the other on a cluster, with replicas that take k times a row."""
    if pricing == "paper":
        return Prices(cluster=cluster, batch_size=batch_size, k=k, reduce="dense", ask_once=False)
    return Prices(cluster=cluster, batch_size=batch_size, k=k)
