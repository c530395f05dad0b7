"""The rows that a rank holds of a tier, and those of them that it updates; how they come from home
and go back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recd_plugins.tiers.home_tables import HomeTable
from recd_plugins.tiers.peers import Nodes, Peers
from recd_plugins.tiers.replicas.tier_layout import TierLayout
from recd_plugins.tiers.row_optimizer import RowOptimizer

__all__ = ["PerNodeTier", "PlannedRows", "ReplicatedTier", "Share", "Tier"]

FILL_ROWS = 1 << 15
"""Rows that move at a time between replicas and their home."""


class Tier:
    """This rank's share of a tier's rows. Every rank calls `fill` and `flush`: they exchange."""

    def __init__(
        self, tables: Sequence[PlannedRows], share: Share, layout: TierLayout, nodes: Nodes
    ) -> None:
        self._tables = tables
        self._nodes = nodes
        self._dealt = nodes.node if layout.shares == nodes.ranks_per_node else Peers(None)
        """The ranks that the shares are dealt out to."""
        self.layout = layout
        self.share = share

    def fill(self) -> None:
        """Copy rows and optimizer state from their home."""
        for home, numbers, start in self._chunks():
            # One rank has each row, the others add 0.
            rows = self.share.rows.new_zeros(len(numbers), self.share.rows.shape[1])
            state = self.share.state.new_zeros(len(numbers), self.share.state.shape[1])
            home.copy_to(numbers, rows, state)
            sums = self._nodes.world.all_reduce(rows), self._nodes.world.all_reduce(state)
            self._put(start, *(pending.wait() for pending in sums))

    def flush(self) -> None:
        """Copy rows and optimizer state back home; the copies here stay as they are."""
        ranks = self._dealt.size
        for home, numbers, start in self._chunks():
            first, last = start // ranks, -(-(start + len(numbers)) // ranks)
            positions = torch.arange(start, start + len(numbers), device=numbers.device)
            rows, state = (
                self._dealt.all_gather(_padded(part[first:last], last - first)).wait()[
                    positions % ranks, positions // ranks - first
                ]
                for part in (self.share.rows, self.share.state)
            )
            home.copy_from(numbers, rows, state)

    def _chunks(self) -> Iterator[tuple[HomeTable, Tensor, int]]:
        """The numbers of rows of one table, and the position of the first."""
        start = 0
        for table in self._tables:
            for numbers in table.numbers.split(FILL_ROWS):
                if len(numbers):
                    yield table.home, numbers, start
                start += len(numbers)

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
        tables: Sequence[PlannedRows],
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
        tables: Sequence[PlannedRows],
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
class PlannedRows:
    """The rows of a table that the plan has in a tier; the tables of a tier follow each other in
    its positions."""

    home: HomeTable
    numbers: Tensor
    """[n] int64, ascending: which rows of the table these are."""


def _padded(rows: Tensor, count: int) -> Tensor:
    """The rows, padded to `count`: the last share of a tier may be a row short."""
    return torch.nn.functional.pad(rows, (0, 0, 0, count - len(rows)))
