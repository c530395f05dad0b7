"""A tier's copies of hot rows on this rank, and how they come from home and go back there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recd_plugins.tiers.home.canonical import HomeTable
from recd_plugins.tiers.nodes import Nodes
from recd_plugins.tiers.updates.optimizer import RowOptimizer
from recd_plugins.tiers.updates.share import Layout, Share

__all__ = ["PerNodeTier", "ReplicatedTier", "Tier", "TierRows"]

CHUNK_ROWS = 1 << 15
"""Rows that move at a time between replicas and their home."""


@dataclass(frozen=True)
class TierRows:
    """A table's rows of a tier; the tables of a tier follow each other in its positions."""

    home: HomeTable
    rows: Tensor
    """[n] int64, ascending."""


class Tier:
    """Copies of `tables`' hot rows: what both tiers have in common, a share each rank updates.

    Every rank must call `fill` and `flush`, for they exchange.
    """

    def __init__(
        self, tables: Sequence[TierRows], share: Share, layout: Layout, nodes: Nodes
    ) -> None:
        self._tables = tables
        self._nodes = nodes
        self.layout = layout
        self.share = share

    def fill(self) -> None:
        """Copy rows and optimizer state from their home."""
        for home, rows, start in self._chunks():
            # One rank has each row, the others add 0.
            copies = self.share.rows.new_zeros(len(rows), self.share.rows.shape[1])
            state = self.share.state.new_zeros(len(rows), self.share.state.shape[1])
            home.copy_to(rows, copies, state)
            everyones = self._nodes.world.all_reduce(copies), self._nodes.world.all_reduce(state)
            self._put(start, *(pending.wait() for pending in everyones))

    def flush(self) -> None:
        """Copy rows and optimizer state back home; the copies here stay as they are."""
        ranks = self._nodes.ranks_per_node
        for home, rows, start in self._chunks():
            first, last = start // ranks, -(-(start + len(rows)) // ranks)
            positions = torch.arange(start, start + len(rows), device=rows.device)
            copies, state = (
                self._nodes.node.all_gather(_padded(part[first:last], last - first)).wait()[
                    positions % ranks, positions // ranks - first
                ]
                for part in (self.share.rows, self.share.state)
            )
            home.copy_from(rows, copies, state)

    def _chunks(self) -> Iterator[tuple[HomeTable, Tensor, int]]:
        """Rows of one table, and the position of the first."""
        start = 0
        for table in self._tables:
            for rows in table.rows.split(CHUNK_ROWS):
                if len(rows):
                    yield table.home, rows, start
                start += len(rows)

    def _put(self, start: int, rows: Tensor, state: Tensor) -> None:
        """Take what this rank keeps of positions `start`, `start + 1`, ..."""
        ranks, rank = self._nodes.ranks_per_node, self._nodes.node.rank
        skip = (rank - start) % ranks
        first = (start + skip) // ranks
        mine = rows[skip::ranks]
        self.share.rows[first : first + len(mine)] = mine
        self.share.state[first : first + len(mine)] = state[skip::ranks]


class PerNodeTier(Tier):
    """Rows that every node has once, spread over its ranks."""

    def __init__(
        self,
        tables: Sequence[TierRows],
        like: Tensor,
        optimizer: RowOptimizer,
        layout: Layout,
        nodes: Nodes,
    ) -> None:
        """Of the type, dimension and device of the rows `like` [0, D]."""
        share = Share(like.new_zeros(layout.share_rows, like.shape[1]), optimizer)
        super().__init__(tables, share, layout, nodes)


class ReplicatedTier(Tier):
    """Rows that every rank has, to read. Of those it updates its share, for its node."""

    def __init__(
        self,
        tables: Sequence[TierRows],
        like: Tensor,
        optimizer: RowOptimizer,
        layout: Layout,
        nodes: Nodes,
    ) -> None:
        self.rows = like.new_zeros(layout.num_places, like.shape[1])
        """[at least count, D] by position."""
        share = Share(self.rows[nodes.node.rank :: nodes.ranks_per_node], optimizer)
        super().__init__(tables, share, layout, nodes)

    def _put(self, start: int, rows: Tensor, state: Tensor) -> None:
        super()._put(start, rows, state)
        self.rows[start : start + len(rows)] = rows


def _padded(rows: Tensor, count: int) -> Tensor:
    """The last share of a tier may be a row short."""
    return torch.nn.functional.pad(rows, (0, 0, 0, count - len(rows)))
