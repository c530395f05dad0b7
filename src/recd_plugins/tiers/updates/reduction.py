"""Gradients of replicas, summed over ranks in bounded chunks and applied once.

    scale · Σ_ranks g, over the union of the rows that any rank touched

Ranks of a node first sum within it, each for its share of the rows; a share is then summed
across nodes, so that a row crosses between nodes once each way and not once per rank. Two
chunks are under way at a time: while one is on the wire, the other is summed and stepped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recd_plugins.tiers.errand import Collectives, in_flight
from recd_plugins.tiers.nodes import Nodes, Pending
from recd_plugins.tiers.replica import PerNodeTier, ReplicatedTier
from recd_plugins.tiers.updates.chunks import Chunks
from recd_plugins.tiers.updates.entries import Entries
from recd_plugins.tiers.updates.touched import Touched

__all__ = ["Reduction"]

IN_FLIGHT = 2


@dataclass(frozen=True)
class Reduction:
    """Sums gradients over ranks and updates replicas; every rank must run the same turns."""

    nodes: Nodes
    scale: float
    """TorchRec's gradient division, once: 1 / world size, or 1."""
    chunk_rows: int
    """Rows under way at a time, of all ranks of a node; bounds the memory of an update."""
    hot: bool = False
    """Of a hot batch: by no all-to-all. All ranks of a node sum all rows that one of them touched,
    for they touch mostly the same."""

    def replicated(
        self,
        replica: ReplicatedTier,
        entries: Entries,
        touched: Touched,
        learning_rate: float,
    ) -> Collectives[None]:
        """Update rows that every rank has; `entries` are this rank's, by place."""
        node = self.nodes.node
        chunks = Chunks(touched, node.rank, max(1, self.chunk_rows // node.size))

        def chunk(number: int, part: Entries) -> Collectives[None]:
            rows = chunks.rows(number)
            summed = yield from self._in_node(chunks, number, part, touched)
            summed = yield from self._across(summed, touched.by_node[:, rows])
            stepped = replica.share.update(rows, summed.mul_(self.scale), learning_rate)
            if node.size > 1:
                del summed
                shares = [chunks.rows(number, share) for share in range(node.size)]
                sent = stepped.new_zeros(max(map(len, shares)), stepped.shape[1])
                sent[: len(rows)] = stepped
                every = yield node.all_gather(sent)
                for share, (theirs, updated) in enumerate(zip(shares, every, strict=True)):
                    replica.rows.index_copy_(0, theirs * node.size + share, updated[: len(theirs)])

        parts = enumerate(chunks.entries(entries))
        yield from in_flight((chunk(number, part) for number, part in parts), IN_FLIGHT)

    def per_node(
        self, replica: PerNodeTier, entries: Entries, by_node: Tensor, learning_rate: float
    ) -> Collectives[None]:
        """Update this rank's share of rows that every node has; `entries` are its node's."""
        union = by_node.any(0)
        rows = union.nonzero().squeeze(1)
        order = (union.cumsum(0, dtype=torch.int32) - 1)[entries.places]
        ranked, width = entries.at(order), self.chunk_rows
        if len(rows) > width:
            ranked = ranked.sorted()

        def chunk(start: int) -> Collectives[None]:
            own = rows[start : start + width]
            part = ranked.between(start, start + len(own), 0) if len(rows) > width else ranked
            summed = yield from self._across(part.summed(len(own)), by_node[:, own])
            replica.share.update(own, summed.mul_(self.scale), learning_rate)

        yield from in_flight(map(chunk, range(0, len(rows), width)), IN_FLIGHT)

    def _in_node(
        self, chunks: Chunks, number: int, part: Entries, touched: Touched
    ) -> Collectives[Tensor]:
        """The sum over the node's ranks of a chunk's gradients, of this rank's share."""
        node = self.nodes.node
        sends = chunks.sends(number)
        sums = part.summed(sum(sends))
        if not self.hot:
            receives, which = chunks.receives(number)
            arrived = yield node.all_to_all(sums, sends, receives)
            return Entries(which, arrived).summed(len(chunks.rows(number)))
        shares = [chunks.rows(number, share) for share in range(node.size)]
        padded = sums.new_zeros(node.size, max(map(len, shares)), sums.shape[1])
        for share, (rows, own) in enumerate(zip(shares, sums.split(sends), strict=True)):
            padded[share].index_copy_(0, touched.mine[share, rows].nonzero().squeeze(1), own)
        summed = yield node.reduce_scatter(padded.flatten(0, 1))
        return summed[: len(shares[node.rank])]

    def _across(self, sums: Tensor, by_node: Tensor) -> Collectives[Tensor]:
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
            return (yield across.all_reduce(sums) if len(sums) else Pending(sums, None))
        mine = by_node[across.rank].nonzero().squeeze(1)
        sent = sums.new_zeros(most, sums.shape[1])
        sent[: len(mine)] = sums[mine]
        every = yield across.all_gather(sent)
        total = torch.zeros_like(sums)
        for rows, touched in zip(every, by_node, strict=True):  # in one order on all nodes
            which = touched.nonzero().squeeze(1)
            total.index_add_(0, which, rows[: len(which)])
        return total
