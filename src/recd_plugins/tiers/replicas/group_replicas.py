"""Replicas, the copies of hot rows: those of a collection, by group of tables and by tier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recd_plugins.errors import CapabilityError
from recd_plugins.planning.tier_plans.tier_plan import (
    Rows,
    TablePlan,
    TierPlan,
    shares_of_replicated,
)
from recd_plugins.tiers.home_tables import HomeTable
from recd_plugins.tiers.peers import Nodes
from recd_plugins.tiers.replicas.tier_layout import TierLayout
from recd_plugins.tiers.replicas.tier_rows import PerNodeTier, PlannedRows, ReplicatedTier, Tier
from recd_plugins.tiers.routing.bitmap_router import BitmapRouter
from recd_plugins.tiers.routing.routed_ids import Router
from recd_plugins.tiers.routing.sorted_router import SortedRouter
from recd_plugins.tiers.tables import TableGroup

__all__ = ["GroupReplicas", "Replicas"]


class Replicas:
    """All replicas of a collection under one tier plan. A batch keeps those that it was routed by.

    They hold the rows while `filled`. Every rank calls each method.
    """

    def __init__(self, groups: Sequence[TableGroup], plan: TierPlan, nodes: Nodes) -> None:
        self._nodes = nodes
        self.version = plan.version
        """The plan's, by which batches are marked hot."""
        self.groups = [GroupReplicas.of(group, plan, nodes) for group in groups]
        if groups and (like := groups[0].like).is_cuda:
            # Batches are routed on other streams, which do not wait for this one.
            torch.cuda.current_stream(like.device).synchronize()
        self.filled = False
        self._writes: list[tuple[int, ...]] = []
        """`HomeTable.writes` of each table when these were filled."""
        self.replaced = False
        """Whether other replicas have the rows from now on."""

    @torch.inference_mode(False)  # an evaluation may fill what training updates
    @torch.no_grad()
    def fill(self) -> None:
        """Take the rows from their home."""
        for one in self.groups:
            like = one.group.like
            width = one.group.row_optimizer().state_width(like.shape[1])
            if one.replicated_layout.count:
                one.replicated_tier = ReplicatedTier(
                    one.planned_replicated, like, width, one.replicated_layout, self._nodes
                )
            if one.per_node_layout.count:
                one.per_node_tier = PerNodeTier(
                    one.planned_per_node, like, width, one.per_node_layout, self._nodes
                )
        for tier in self._tiers():
            tier.fill()
        self.filled = True
        self._writes = [home.writes for _, home in self._homes()]

    @torch.inference_mode(False)
    @torch.no_grad()
    def flush(self) -> None:
        """Bring the rows home, and free the copies."""
        self.check_not_written()
        for tier in self._tiers():
            tier.flush()
        for one in self.groups:
            one.replicated_tier = one.per_node_tier = None
        self.filled = False

    def check_not_written(self) -> None:
        """`CapabilityError` if somebody wrote into a table whose rows are in these replicas."""
        for (name, home), before in zip(self._homes(), self._writes, strict=True):
            if (now := home.writes) != before:
                what = "weights" if now[0] != before[0] else "optimizer's states"
                raise CapabilityError(
                    f"tiers: the {what} of table {name!r} were changed while rows of it were in "
                    "replicas: changes of these rows would be lost, and values that were read of "
                    "them are old. Call model.state_dict() on every rank each time before you read "
                    "or write weights, or the optimizer's: it brings all rows home until the next "
                    "batch."
                )

    def hold(self, table: str) -> bool:
        """Whether rows of a table are in these replicas by now."""
        return self.filled and any(name == table for name, _ in self._homes())

    def copies(self) -> Iterator[Tensor]:
        """The tensors that hold rows and optimizer state outside of their home; none while not
        `filled`."""
        for tier in self._tiers():
            yield from (tier.share.rows, tier.share.state)

    def _homes(self) -> Iterator[tuple[str, HomeTable]]:
        """The tables that have replicas, by name."""
        for one in self.groups:
            tables = zip(
                one.group.tables,
                one.group.homes,
                one.planned_replicated,
                one.planned_per_node,
                strict=True,
            )
            for name, home, replicated, per_node in tables:
                if len(replicated.numbers) or len(per_node.numbers):
                    yield name, home

    def _tiers(self) -> list[Tier]:
        both = [(one.replicated_tier, one.per_node_tier) for one in self.groups]
        return [tier for pair in both for tier in pair if tier is not None]


@dataclass
class GroupReplicas:
    """Router and tiers of one group of tables; a tier is there while it holds rows."""

    group: TableGroup
    router: Router
    planned_replicated: tuple[PlannedRows, ...]
    """The rows of each table that are to be in the tier `replicated`."""
    planned_per_node: tuple[PlannedRows, ...]
    """The same of the tier `per_node`."""
    replicated_layout: TierLayout
    per_node_layout: TierLayout
    replicated_tier: ReplicatedTier | None = None
    per_node_tier: PerNodeTier | None = None

    @classmethod
    def of(cls, group: TableGroup, plan: TierPlan, nodes: Nodes) -> GroupReplicas:
        """The replicas that the plan names of the group's tables; they hold no rows yet."""
        device, ranks = group.like.device, nodes.ranks_per_node
        plans = [plan.tables.get(name, TablePlan(table=name)) for name in group.tables]

        def of_tables(tier: Sequence[Rows]) -> tuple[PlannedRows, ...]:
            return tuple(
                PlannedRows(home, torch.from_numpy(np.sort(rows)).to(device))
                for home, rows in zip(group.homes, tier, strict=True)
            )

        replicated = of_tables([one.replicated for one in plans])
        per_node = of_tables([one.per_node for one in plans])
        everywhere, in_nodes = (
            [table.numbers for table in tier] for tier in (replicated, per_node)
        )
        shares = shares_of_replicated(nodes.n_nodes, ranks)
        kind = BitmapRouter if device.type == "cpu" else SortedRouter
        return cls(
            group=group,
            router=kind(group.num_rows, everywhere, in_nodes),
            planned_replicated=replicated,
            planned_per_node=per_node,
            replicated_layout=TierLayout(sum(map(len, everywhere)), shares),
            per_node_layout=TierLayout(sum(map(len, in_nodes)), ranks),
        )
