"""All replicas of a collection under one tier plan: a version, which a batch keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from recd_plugins.planning.tier_plan import TablePlan, TierPlan
from recd_plugins.tiers.group import TableGroup
from recd_plugins.tiers.nodes import Nodes
from recd_plugins.tiers.replica import PerNodeTier, ReplicatedTier, Tier, TierRows
from recd_plugins.tiers.router import Router
from recd_plugins.tiers.updates.share import Layout

__all__ = ["GroupReplicas", "Replicas"]


@dataclass
class GroupReplicas:
    """Router and tiers of one group of tables; a tier's replica is there while it holds rows."""

    group: TableGroup
    router: Router
    replicated: tuple[TierRows, ...]
    """The rows of the all-ranks tier, by table."""
    per_node: tuple[TierRows, ...]
    """The rows of the per-node tier, by table."""
    replicated_layout: Layout
    per_node_layout: Layout
    replicated_tier: ReplicatedTier | None = None
    per_node_tier: PerNodeTier | None = None


class Replicas:
    """Where a plan's hot rows are, and while `filled`, the rows. Every rank calls each method."""

    def __init__(self, groups: Sequence[TableGroup], plan: TierPlan, nodes: Nodes) -> None:
        self._nodes = nodes
        self.groups = [_group(group, plan, nodes.ranks_per_node) for group in groups]
        self.filled = False
        self.left = False
        """Whether others have the rows from now on."""

    @torch.no_grad()
    def fill(self) -> None:
        """Take the rows from their home."""
        for one in self.groups:
            like, arithmetic = one.group.like, one.group.arithmetic
            if one.replicated_layout.count:
                one.replicated_tier = ReplicatedTier(
                    one.replicated, like, arithmetic, one.replicated_layout, self._nodes
                )
            if one.per_node_layout.count:
                one.per_node_tier = PerNodeTier(
                    one.per_node, like, arithmetic, one.per_node_layout, self._nodes
                )
        for replica in self._replicas():
            replica.fill()
        self.filled = True

    @torch.no_grad()
    def flush(self) -> None:
        """Bring the rows home, and let go of the copies."""
        for replica in self._replicas():
            replica.flush()
        for one in self.groups:
            one.replicated_tier = one.per_node_tier = None
        self.filled = False

    def _replicas(self) -> list[Tier]:
        both = [(one.replicated_tier, one.per_node_tier) for one in self.groups]
        return [replica for pair in both for replica in pair if replica is not None]


def _group(group: TableGroup, plan: TierPlan, ranks_per_node: int) -> GroupReplicas:
    device = group.like.device
    plans = [plan.tables.get(name, TablePlan(table=name)) for name in group.tables]
    replicated, per_node = (
        tuple(
            TierRows(home, torch.from_numpy(np.sort(rows)).to(device))
            for home, rows in zip(group.homes, tier, strict=True)
        )
        for tier in ([one.replicated for one in plans], [one.per_node for one in plans])
    )
    everywhere, shared = ([hot.rows for hot in tier] for tier in (replicated, per_node))
    return GroupReplicas(
        group=group,
        router=Router(group.num_rows, everywhere, shared, device),
        replicated=replicated,
        per_node=per_node,
        replicated_layout=Layout(sum(map(len, everywhere)), ranks_per_node),
        per_node_layout=Layout(sum(map(len, shared)), ranks_per_node),
    )
