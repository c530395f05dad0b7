"""Gradients of replicas, summed over ranks in bounded chunks and applied once.

    scale · Σ_ranks g, over the union of the rows that any rank touched

Ranks of a node first sum within it, each for its share of the rows; a share is then summed
across nodes, so that a row crosses between nodes once each way and not once per rank. Two
chunks are under way at a time: while one is on the wire, the other is summed and stepped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from recd_plugins.tiers.entries import Entries
from recd_plugins.tiers.nodes import Arriving, Nodes
from recd_plugins.tiers.replica import AllRanksReplica, PerNodeReplica
from recd_plugins.tiers.touched import Touched, touched_anywhere, touched_by_node

__all__ = ["Reduction"]

Steps: TypeAlias = Generator[Arriving, Tensor, None]
"""What one chunk waits for, in turn; every rank's chunks wait for equally many."""

IN_FLIGHT = 2


@dataclass(frozen=True)
class Reduction:
    """Sums gradients over ranks and updates replicas; every rank must call each method."""

    nodes: Nodes
    scale: float
    """TorchRec's gradient division, once: 1 / world size, or 1."""
    chunk_rows: int = 1 << 15
    """Rows under way at a time, of all ranks of a node; bounds the memory of an update."""

    def all_ranks(self, replica: AllRanksReplica, entries: Entries, learning_rate: float) -> None:
        """Update rows that every rank has; `entries` are this rank's, by place."""
        layout = replica.layout
        shares = (layout.ranks_per_node, layout.share_rows)
        mine = entries.touched(layout.num_places).view(shares)
        touched = touched_anywhere(mine, self.nodes)
        union = _Union(touched, self.nodes.node.rank, max(1, self.chunk_rows // shares[0]))

        def chunk(number: int, part: Entries) -> Steps:
            width = union.width(number)
            sums = part.gradients.new_zeros(shares[0] * width, part.gradients.shape[1])
            part.add_to(sums)
            summed = yield self.nodes.node.reduce_scatter(sums.view(shares[0], width, -1))
            del sums
            rows = union.own_rows(number)
            summed = yield from self._across(summed[: len(rows)], touched.by_node[:, rows])
            stepped = replica.share.update(rows, summed.mul_(self.scale), learning_rate)
            if shares[0] > 1:
                del summed
                sent = stepped.new_zeros(width, stepped.shape[1])
                sent[: len(rows)] = stepped
                every = yield self.nodes.node.all_gather(sent)
                at, places = union.every_rows(number)
                replica.rows[layout.position(places)] = every.flatten(0, 1)[at]

        _run(chunk(number, part) for number, part in enumerate(union.chunks(entries)))

    def per_node(self, replica: PerNodeReplica, entries: Entries, learning_rate: float) -> None:
        """Update this rank's share of rows that every node has; `entries` are its node's."""
        touched = touched_by_node(entries.touched(replica.layout.share_rows), self.nodes)
        union = _Union(touched, 0, self.chunk_rows)

        def chunk(number: int, part: Entries) -> Steps:
            rows = union.own_rows(number)
            sums = part.gradients.new_zeros(len(rows), part.gradients.shape[1])
            part.add_to(sums)
            summed = yield from self._across(sums, touched.by_node[:, rows])
            replica.share.update(rows, summed.mul_(self.scale), learning_rate)

        _run(chunk(number, part) for number, part in enumerate(union.chunks(entries)))

    def _across(self, sums: Tensor, by_node: Tensor) -> Generator[Arriving, Tensor, Tensor]:
        """The sum over nodes of `sums` [n, D], alike on all; `by_node` [N, n]: who touched which.

        Bytes in all: 2 (N - 1) n rows by a ring over all rows, (N - 1) N m by gathering at most
        m touched ones of each node. The cheaper one is taken.
        """
        across = self.nodes.across
        if across.size == 1:
            return sums
        most = int(by_node.sum(1).max()) if len(sums) else 0
        if across.size * most >= 2 * len(sums):
            # Even with nothing to send it counts as a step: chunks must stay in turn.
            return (yield across.all_reduce(sums) if len(sums) else Arriving(sums, None))
        mine = by_node[across.rank].nonzero().squeeze(1)
        sent = sums.new_zeros(most, sums.shape[1])
        sent[: len(mine)] = sums[mine]
        every = yield across.all_gather(sent)
        total = torch.zeros_like(sums)
        for rows, touched in zip(every, by_node, strict=True):  # in one order on all nodes
            which = touched.nonzero().squeeze(1)
            total.index_add_(0, which, rows[: len(which)])
        return total


class _Union:
    """The rows of each share that any rank touched, cut into chunks of equal width."""

    def __init__(self, touched: Touched, own: int, chunk_width: int) -> None:
        anywhere = touched.anywhere
        self._order = (anywhere.cumsum(1, dtype=torch.int32) - 1).flatten()
        self._share_rows = max(1, anywhere.shape[1])
        self._rows = [share.nonzero().squeeze(1) for share in anywhere]
        self._own = own
        self._chunk_width = chunk_width
        self._most = max(map(len, self._rows))

    def width(self, number: int) -> int:
        """Rows of each share in a chunk, the longest share's."""
        return min(self._chunk_width, self._most - number * self._chunk_width)

    def own_rows(self, number: int) -> Tensor:
        """This rank's rows in a chunk, by their row in its share."""
        return self._of(self._rows[self._own], number)

    def every_rows(self, number: int) -> tuple[Tensor, Tensor]:
        """All rows of a chunk: where they are among `width` of each share, and their places."""
        at, places = [], []
        for share, rows in enumerate(self._rows):
            chunk = self._of(rows, number)
            at.append(torch.arange(len(chunk), device=rows.device) + share * self.width(number))
            places.append(chunk + share * self._share_rows)
        return torch.cat(at), torch.cat(places)

    def chunks(self, entries: Entries) -> Iterable[Entries]:
        """The entries of each chunk, their places counted within it: share by share."""
        order = self._order[entries.places].long()
        numbers = order // self._chunk_width
        shares = entries.places // self._share_rows
        widths = (self._most - numbers * self._chunk_width).clamp(max=self._chunk_width)
        within = entries.at(shares * widths + order % self._chunk_width)
        return within.by_chunk(numbers, -(-self._most // self._chunk_width))

    def _of(self, rows: Tensor, number: int) -> Tensor:
        return rows[number * self._chunk_width : (number + 1) * self._chunk_width]


def _run(chunks: Iterable[Steps]) -> None:
    """Advance each chunk as what it waits for arrives: the same turns on every rank."""
    under_way: deque[tuple[Steps, Arriving]] = deque()

    def advance(chunk: Steps, arrived: Any) -> None:
        with suppress(StopIteration):
            under_way.append((chunk, chunk.send(arrived)))

    for chunk in chunks:
        while len(under_way) >= IN_FLIGHT:
            oldest, arriving = under_way.popleft()
            advance(oldest, arriving.wait())
        advance(chunk, None)
    while under_way:
        oldest, arriving = under_way.popleft()
        advance(oldest, arriving.wait())
