"""Gradients of replicas summed over ranks, and the rows stepped by the sums.

    w <- step(w, scale · Σ_ranks g), for the union of the rows that any rank touched

Ranks of a node first sum within it, each for its share of the rows; a share is then summed across
nodes, so that a row crosses between nodes once each way and not once per rank. Two ranks that are
the whole world have one share, which both sum and step. This is done in bounded chunks, two at a
time: while one is on the wire, the other is summed and stepped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torchrec.distributed.comm_ops import get_gradient_division, get_use_sync_collectives

from recd_plugins.tiers.collectives import Collectives, in_flight
from recd_plugins.tiers.gradients.chunks import Chunks
from recd_plugins.tiers.gradients.entries import Entries
from recd_plugins.tiers.gradients.touched import Touched, TouchedByNode, TouchedRows
from recd_plugins.tiers.peers import Buffer, Nodes, Pending, of_shape
from recd_plugins.tiers.replicas.tier_rows import PerNodeTier, ReplicatedTier
from recd_plugins.tiers.row_optimizer import RowOptimizer

__all__ = ["GradientDivision", "Reduction"]

IN_FLIGHT = 2
"""Chunks under way at a time."""


@dataclass(frozen=True)
class GradientDivision:
    """Whether gradients are divided by the world size, which `set_gradient_division` may change.

    TorchRec's synchronous collectives read it in the forward, its others in backward.
    """

    in_forward: bool | None
    """The setting that the forward read, if its collectives are synchronous."""

    @classmethod
    def of_forward(cls) -> GradientDivision:
        """The division that holds for a forward: make it as the batch is computed."""
        return cls(get_gradient_division() if get_use_sync_collectives() else None)

    def scale(self, world_size: int) -> float:
        """1 / world size, or 1; to be read in backward."""
        divides = get_gradient_division() if self.in_forward is None else self.in_forward
        return 1 / world_size if divides else 1.0


Buffers: TypeAlias = tuple[Buffer | None, Buffer | None]


def _buffers(rows: int, gradients: Tensor) -> list[Buffers]:
    """Two buffers for each chunk under way, of so many rows: what a chunk sends and what it
    receives take turns in them. Without these, malloc would be given back tensors of several sizes,
    and keep half as much again in pieces that fit none; CUDA's allocator reuses them."""
    if gradients.is_cuda:
        return [(None, None)] * IN_FLIGHT
    size = rows * gradients.shape[1] * gradients.element_size()
    return [(sent, received) for sent, received in np.empty((IN_FLIGHT, 2, size), np.uint8)]


@dataclass(frozen=True)
class Reduction:
    """Sums gradients over ranks and steps replicas by the sums, tier by tier. Every rank must run
    the same collectives."""

    nodes: Nodes
    division: GradientDivision
    """TorchRec's division, which is applied once."""
    chunk_rows: int
    """Rows under way at a time, of all ranks of a node; bounds the memory of an update."""
    hot: bool = False
    """Whether the batch is hot. Then there is no all-to-all: all ranks of a node sum all rows that
    any of them touched, since they touch mostly the same ones."""

    def replicated(
        self,
        tier: ReplicatedTier,
        entries: Entries,
        touched: Touched,
        optimizer: RowOptimizer,
    ) -> Collectives[None]:
        """Update rows that every rank has, by this rank's `entries`, whose targets are addresses.

        Chunk by chunk each rank has its share of the gradients summed within the node, then across
        nodes, steps the rows of its share, and sends them to its node. Where the ranks of one node
        have one share, they sum all gradients, and each steps all rows that any touched.
        """
        node, scale = self.nodes.node, self.division.scale(self.nodes.world.size)
        shares = tier.layout.shares
        chunks = Chunks(touched, node.rank % shares, max(1, self.chunk_rows // shares))

        buffers = _buffers(chunks.most, entries.gradients)

        def chunk(number: int, part: Entries) -> Collectives[None]:
            rows, pair = chunks.rows(number), buffers.pop()
            if shares == self.nodes.n_nodes == 1:
                summed = yield node.all_reduce(part.summed(len(rows), pair[0]))
            else:
                summed = yield from self._in_node(chunks, number, rows, part, touched, pair)
                if self.nodes.n_nodes > 1:
                    summed = yield from self._across(summed, chunks.of_nodes(number, rows))
            tier.share.update(rows, summed.mul_(scale), optimizer)
            if shares > 1:
                del summed
                yield from self._to_node(tier, chunks, number, rows, pair)
            buffers.append(pair)

        parts = enumerate(chunks.entries(entries))
        yield from in_flight((chunk(number, part) for number, part in parts), IN_FLIGHT)

    def per_node(
        self,
        tier: PerNodeTier,
        entries: Entries,
        touched: TouchedByNode,
        optimizer: RowOptimizer,
    ) -> Collectives[None]:
        """Update this rank's share of the rows that every node has, by the `entries` of its node,
        whose targets are rows of the share."""
        scale = self.division.scale(self.nodes.world.size)
        rows = touched.rows
        few = len(rows) < 1 << 31
        ranked = entries.onto(torch.searchsorted(rows, entries.targets, out_int32=few))
        firsts = [*range(0, len(rows), self.chunk_rows), len(rows)]
        one = len(rows) <= self.chunk_rows
        parts: Iterable[Entries] = [ranked] if one else ranked.of_bands(firsts)

        of_nodes = TouchedRows.of_chunks(touched, firsts) if self.nodes.n_nodes > 1 else []

        def chunk(number: int, part: Entries) -> Collectives[None]:
            own = rows[firsts[number] : firsts[number + 1]]
            summed = part.summed(len(own))
            if of_nodes:
                summed = yield from self._across(summed, of_nodes[number])
            tier.share.update(own, summed.mul_(scale), optimizer)

        chunks = zip(range(len(firsts) - 1), parts, strict=False)
        yield from in_flight((chunk(number, part) for number, part in chunks), IN_FLIGHT)

    def _in_node(
        self,
        chunks: Chunks,
        number: int,
        rows: Tensor,
        part: Entries,
        touched: Touched,
        buffers: Buffers,
    ) -> Collectives[Tensor]:
        """[n, D]: the sum over the node's ranks of a chunk's gradients, for the `rows` [n] of this
        rank's share. `part` has this rank's gradients, for all shares."""
        node = self.nodes.node
        sends = chunks.sends(number)
        sums = part.summed(sum(sends), buffers[0])
        if not self.hot:
            receives, which = chunks.receives(number, rows)
            arrived = yield node.all_to_all(sums, sends, receives, buffers[1])
            free = buffers[0] if node.size > 1 else buffers[1]  # alone, it has what it sent
            return Entries(which, arrived).summed(len(rows), free)
        shares = [chunks.rows(number, share) for share in range(node.size)]
        padded = sums.new_zeros(node.size, max(map(len, shares)), sums.shape[1])
        for share, (of_share, own) in enumerate(zip(shares, sums.split(sends), strict=True)):
            mine = TouchedRows(touched.mine[share : share + 1, of_share], [len(own)])
            padded[share].index_copy_(0, mine.which(), own)
        summed = yield node.reduce_scatter(padded.flatten(0, 1))
        return summed[: len(shares[node.rank])]

    def _to_node(
        self,
        tier: ReplicatedTier,
        chunks: Chunks,
        number: int,
        rows: Tensor,
        buffers: Buffers,
    ) -> Collectives[None]:
        """Send the node's ranks the `rows` of a chunk that this rank has stepped; take theirs."""
        shares = tier.layout.shares
        each = [chunks.rows(number, share) for share in range(shares)]
        sent = of_shape((max(map(len, each)), tier.rows.shape[1]), tier.rows, buffers[1])
        torch.index_select(tier.share.rows, 0, rows, out=sent[: len(rows)])
        if len(rows) < len(sent):
            sent[len(rows) :] = 0
        every = yield self.nodes.node.all_gather(sent, buffers[0])
        for share, (theirs, updated) in enumerate(zip(each, every, strict=True)):
            tier.rows.index_copy_(0, theirs * shares + share, updated[: len(theirs)])

    def _across(self, sums: Tensor, of_nodes: TouchedRows) -> Collectives[Tensor]:
        """The sum over nodes of `sums` [n, D]: the same tensor on all nodes. `of_nodes` says which
        of these rows each node touched.

        Bytes in all: 2 (A - 1) n rows by a ring of A nodes over all rows, (A - 1) A m by gathering
        at most m touched ones of each node. The cheaper one is taken.
        """
        across, counts = self.nodes.across, of_nodes.counts
        most = max(counts)
        if across.size * most >= 2 * len(sums):
            # Even with nothing to send it counts as a step: chunks must keep their order.
            return (yield across.all_reduce(sums) if len(sums) else Pending(sums, None))
        which = of_nodes.which().split(counts)
        mine = which[across.rank]
        sent = sums.new_zeros(most, sums.shape[1])
        sent[: len(mine)] = sums[mine]
        gathered = yield across.all_gather(sent)
        total = torch.zeros_like(sums)
        for rows, own in zip(gathered, which, strict=True):  # in one order on all nodes
            total.index_add_(0, own, rows[: len(own)])
        return total
