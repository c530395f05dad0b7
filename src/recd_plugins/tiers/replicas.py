"""Replicas, the copies of hot rows: those of a collection (`Replicas`), by group of tables and by
tier; how they come from home and go back (`Tier`); and how a tier's rows are spread over the ranks
of a node (`TierLayout`).

A node has a share for each of its ranks, but two ranks that are the whole world have one share in
common. To step all rows alike they exchange the gradients of the rows that either touched, once;
with a share each, they would exchange gradients and then rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recd_plugins.errors import CapabilityError
from recd_plugins.planning.tier_plan import Rows, TablePlan, TierPlan, shares_of_replicated
from recd_plugins.tiers.collectives import Nodes, Peers
from recd_plugins.tiers.home_tables import HomeTable
from recd_plugins.tiers.routing.router import Router
from recd_plugins.tiers.routing.sorted_router import SortedRouter
from recd_plugins.tiers.row_optimizer import RowOptimizer
from recd_plugins.tiers.tables import TableGroup

__all__ = [
    "GroupReplicas",
    "PerNodeTier",
    "Replicas",
    "ReplicatedTier",
    "Share",
    "Tier",
    "TierLayout",
    "TierRows",
]

FILL_ROWS = 1 << 15
"""Rows that move at a time between replicas and their home."""


class Replicas:
    """All replicas of a collection under one tier plan: a version, which a batch keeps.

    They hold the rows while `filled`. Every rank calls each method.
    """

    def __init__(self, groups: Sequence[TableGroup], plan: TierPlan, nodes: Nodes) -> None:
        self._nodes = nodes
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
                    one.replicated_rows, like, width, one.replicated_layout, self._nodes
                )
            if one.per_node_layout.count:
                one.per_node_tier = PerNodeTier(
                    one.per_node_rows, like, width, one.per_node_layout, self._nodes
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
                one.replicated_rows,
                one.per_node_rows,
                strict=True,
            )
            for name, home, replicated, per_node in tables:
                if len(replicated.rows) or len(per_node.rows):
                    yield name, home

    def _tiers(self) -> list[Tier]:
        both = [(one.replicated_tier, one.per_node_tier) for one in self.groups]
        return [tier for pair in both for tier in pair if tier is not None]


@dataclass
class GroupReplicas:
    """Router and tiers of one group of tables; a tier is there while it holds rows."""

    group: TableGroup
    router: Router | SortedRouter
    replicated_rows: tuple[TierRows, ...]
    """The rows of each table that are replicated."""
    per_node_rows: tuple[TierRows, ...]
    """The rows of each table that are there once per node."""
    replicated_layout: TierLayout
    per_node_layout: TierLayout
    replicated_tier: ReplicatedTier | None = None
    per_node_tier: PerNodeTier | None = None

    @classmethod
    def of(cls, group: TableGroup, plan: TierPlan, nodes: Nodes) -> GroupReplicas:
        """The replicas that the plan names of the group's tables; they hold no rows yet."""
        device, ranks = group.like.device, nodes.ranks_per_node
        plans = [plan.tables.get(name, TablePlan(table=name)) for name in group.tables]

        def of_tables(tier: Sequence[Rows]) -> tuple[TierRows, ...]:
            return tuple(
                TierRows(home, torch.from_numpy(np.sort(rows)).to(device))
                for home, rows in zip(group.homes, tier, strict=True)
            )

        replicated = of_tables([one.replicated for one in plans])
        per_node = of_tables([one.per_node for one in plans])
        everywhere, in_nodes = ([table.rows for table in tier] for tier in (replicated, per_node))
        shares = shares_of_replicated(nodes.n_nodes, ranks)
        kind = Router if device.type == "cpu" else SortedRouter
        return cls(
            group=group,
            router=kind(group.num_rows, everywhere, in_nodes),
            replicated_rows=replicated,
            per_node_rows=per_node,
            replicated_layout=TierLayout(sum(map(len, everywhere)), shares),
            per_node_layout=TierLayout(sum(map(len, in_nodes)), ranks),
        )


class Tier:
    """This rank's share of a tier's rows. Every rank calls `fill` and `flush`: they exchange."""

    def __init__(
        self, tables: Sequence[TierRows], share: Share, layout: TierLayout, nodes: Nodes
    ) -> None:
        self._tables = tables
        self._nodes = nodes
        self._dealt = nodes.node if layout.shares == nodes.ranks_per_node else Peers(None)
        """The ranks that the shares are dealt out to."""
        self.layout = layout
        self.share = share

    def fill(self) -> None:
        """Copy rows and optimizer state from their home."""
        for home, rows, start in self._chunks():
            # One rank has each row, the others add 0.
            copies = self.share.rows.new_zeros(len(rows), self.share.rows.shape[1])
            state = self.share.state.new_zeros(len(rows), self.share.state.shape[1])
            home.copy_to(rows, copies, state)
            sums = self._nodes.world.all_reduce(copies), self._nodes.world.all_reduce(state)
            self._put(start, *(pending.wait() for pending in sums))

    def flush(self) -> None:
        """Copy rows and optimizer state back home; the copies here stay as they are."""
        ranks = self._dealt.size
        for home, rows, start in self._chunks():
            first, last = start // ranks, -(-(start + len(rows)) // ranks)
            positions = torch.arange(start, start + len(rows), device=rows.device)
            copies, state = (
                self._dealt.all_gather(_padded(part[first:last], last - first)).wait()[
                    positions % ranks, positions // ranks - first
                ]
                for part in (self.share.rows, self.share.state)
            )
            home.copy_from(rows, copies, state)

    def _chunks(self) -> Iterator[tuple[HomeTable, Tensor, int]]:
        """Rows of one table, and the position of the first."""
        start = 0
        for table in self._tables:
            for rows in table.rows.split(FILL_ROWS):
                if len(rows):
                    yield table.home, rows, start
                start += len(rows)

    def _put(self, start: int, rows: Tensor, state: Tensor) -> None:
        """Store what this rank keeps of the positions `start`, `start + 1`, ..."""
        ranks, rank = self._dealt.size, self._dealt.rank
        skip = (rank - start) % ranks
        first = (start + skip) // ranks
        mine = rows[skip::ranks]
        self.share.rows[first : first + len(mine)] = mine
        self.share.state[first : first + len(mine)] = state[skip::ranks]


class ReplicatedTier(Tier):
    """Rows that every rank has, to read; it updates a share of them, for its node."""

    def __init__(
        self,
        tables: Sequence[TierRows],
        like: Tensor,
        state_width: int,
        layout: TierLayout,
        nodes: Nodes,
    ) -> None:
        """The tier has the type, dimension and device of the rows `like` [0, D]."""
        self.rows = like.new_zeros(layout.num_addresses, like.shape[1])
        """[at least count, D] by position; the rows of the share are a view of these."""
        share = Share(self.rows[nodes.node.rank % layout.shares :: layout.shares], state_width)
        super().__init__(tables, share, layout, nodes)

    def _put(self, start: int, rows: Tensor, state: Tensor) -> None:
        super()._put(start, rows, state)
        self.rows[start : start + len(rows)] = rows


class PerNodeTier(Tier):
    """Rows that every node has once, spread over its ranks."""

    def __init__(
        self,
        tables: Sequence[TierRows],
        like: Tensor,
        state_width: int,
        layout: TierLayout,
        nodes: Nodes,
    ) -> None:
        """The tier has the type, dimension and device of the rows `like` [0, D]."""
        share = Share(like.new_zeros(layout.share_rows, like.shape[1]), state_width)
        super().__init__(tables, share, layout, nodes)


class Share:
    """The share of a tier that this rank updates for its node, with optimizer state.

    Every node has the same shares, and updates them alike.
    """

    def __init__(self, rows: Tensor, state_width: int) -> None:
        """`rows` [R, D], a tensor or a view of one, are updated in place."""
        self.rows = rows
        self.state = torch.zeros(len(rows), state_width, dtype=torch.float32, device=rows.device)

    def update(self, which: Tensor, gradients: Tensor, optimizer: RowOptimizer) -> None:
        """Step the rows `which` [n] by gradients [n, D] float32."""
        optimizer.update(self.rows, self.state, which, gradients)


@dataclass(frozen=True)
class TierRows:
    """A table's rows of a tier; the tables of a tier follow each other in its positions."""

    home: HomeTable
    rows: Tensor
    """[n] int64, ascending."""


class TierLayout:
    """The `count` positions of a tier, dealt out to S shares. Each rank of a node has a share of
    its own, or all ranks have one in common.

    Position p is row p // S of share p mod S, so that rows that are hot at the same time (low ids,
    say) are spread. A share has room for `share_rows` rows, the same on all ranks:

        address = share · share_rows + row in the share

    The positions 0, 1, 2, 3 of 3 shares are the rows 0 of the shares 0, 1, 2 and row 1 of share 0:
    a share has room for 2 rows, and they have the addresses 0, 2, 4, 1.
    """

    def __init__(self, count: int, shares: int) -> None:
        self.count = count
        self.shares = shares
        self.share_rows = -(-count // shares)

    @property
    def num_addresses(self) -> int:
        return self.share_rows * self.shares

    def address(self, positions: Tensor) -> Tensor:
        """[n]: the addresses of `positions` [n] int64, which count the rows share by share; int32
        where they fit, since an update holds one for each id. With one share they are the
        positions."""
        size = self.shares
        if size == 1:
            return positions
        kind = torch.int32 if self.num_addresses < 1 << 31 else torch.int64
        addresses = positions.to(kind, copy=True)
        if size & (size - 1) == 0:  # divisions take twice as long
            rows = addresses >> size.bit_length() - 1
            return addresses.bitwise_and_(size - 1).mul_(self.share_rows).add_(rows)
        rows = addresses // size
        return addresses.remainder_(size).mul_(self.share_rows).add_(rows)


def _padded(rows: Tensor, count: int) -> Tensor:
    """The rows, padded to `count`: the last share of a tier may be a row short."""
    return torch.nn.functional.pad(rows, (0, 0, 0, count - len(rows)))
