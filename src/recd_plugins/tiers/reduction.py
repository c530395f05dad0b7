"""Gradients of replicas summed over ranks, and the rows stepped by the sums.

    w <- step(w, scale · Σ_ranks g), for the union of the rows that any rank touched

Ranks of a node first sum within it, each for its share of the rows; a share is then summed
across nodes, so that a row crosses between nodes once each way and not once per rank. Two ranks of
one node have one share, which both sum and step. This is done in bounded chunks, two at a time:
while one is on the wire, the other is summed and stepped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.distributed.comm_ops import get_gradient_division, get_use_sync_collectives

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import DataError
from recd_plugins.sparse.rows.memory import all_below, numbers_on
from recd_plugins.tiers.collectives import (
    Buffer,
    Collectives,
    Nodes,
    Pending,
    in_flight,
    of_shape,
)
from recd_plugins.tiers.replicas import PerNodeTier, ReplicatedTier
from recd_plugins.tiers.routed_batch import Touched, TouchedByNode
from recd_plugins.tiers.row_optimizer import RowOptimizer

__all__ = ["Chunks", "Entries", "GradientDivision", "Reduction", "add_rows"]

Bools: TypeAlias = npt.NDArray[np.bool_]
Counts: TypeAlias = list[list[int]]
I64: TypeAlias = npt.NDArray[np.int64]

COPIED_ROWS = 1 << 13
"""Gradients that are copied at a time."""
IN_FLIGHT = 2
"""Chunks under way at a time."""


def add_rows(
    sums: Tensor,
    targets: Tensor,
    rows: Tensor,
    sources: Tensor | None = None,
    weights: Tensor | None = None,
) -> None:
    """On the CPU, `sums[targets[i]] += weights[i] * rows[sources[i]]` for each i, in their order.

    `rows` and `sums` are float32; by default row i is the i-th, and weighs 1. No row is copied on
    the way. To the bit this is `index_add_`, which takes ten times as long for many rows.
    """
    none = targets.new_empty(0, dtype=torch.int64)
    given = targets, rows, none if sources is None else sources
    weighed = sums.new_empty(0) if weights is None else weights
    arrays = (one.detach().contiguous().numpy() for one in (*given, weighed))
    if not _add_rows(sums.numpy(), *arrays):
        raise _of_no_row(len(sums), len(rows))


def _of_no_row(num_rows: int, num_gradients: int) -> DataError:
    return DataError(
        f"tiers: some gradient is of none of {num_rows} rows, or is none of {num_gradients}. "
        "Ranks whose tier plans differ ask for such rows: give all of them the same plan."
    )


@kernel
def _add_rows(
    sums: npt.NDArray[np.float32],
    targets: npt.NDArray[Any],
    rows: npt.NDArray[np.float32],
    sources: npt.NDArray[Any],
    weights: npt.NDArray[np.float32],
) -> bool:
    """Without `sources` row i is the i-th, and without `weights` each weighs 1. Nothing is added,
    and False returned, where a target or a source does not exist."""
    rows_there = all_below(sources, len(rows)) if sources.size else len(targets) <= len(rows)
    if not (rows_there and all_below(targets, len(sums))):
        return False
    for i in range(targets.size):
        target, source = targets[i], sources[i] if sources.size else i
        weight = weights[i] if weights.size else np.float32(1)
        for column in range(sums.shape[1]):
            sums[target, column] += weight * rows[source, column]
    return True


@dataclass(frozen=True)
class Entries:
    """Gradients of rows as backward has them: several of one row, in any order.

    Entry i adds `gradients[sources[i]] * weights[i]` to row `targets[i]`: of a tier, by its
    address; of a chunk; or of the share that ranks of the node asked this one for.
    """

    targets: Tensor
    """[n] int64 or int32."""
    gradients: Tensor
    """[m, D] float32: backward's, and never written to."""
    sources: Tensor | None = None
    """[n] int64 or int32; by default entry i has gradient i."""
    weights: Tensor | None = None
    """[n] float32; by default 1."""

    def onto(self, targets: Tensor) -> Entries:
        """The same entries for the rows `targets` [n] of something else."""
        return Entries(targets, self.gradients, self.sources, self.weights)

    def picked(self, which: npt.NDArray[Any], targets: Tensor) -> Entries:
        """The entries `which` [k], on the CPU, for the rows `targets` [k] of something else."""

        def of(every: Tensor) -> Tensor:
            return torch.from_numpy(every.detach().numpy()[which])

        return Entries(
            targets,
            self.gradients,
            torch.from_numpy(which) if self.sources is None else of(self.sources),
            None if self.weights is None else of(self.weights),
        )

    def of_parts(self, edges: I64) -> list[npt.NDArray[Any]]:
        """The entries of each part, on the CPU: their numbers [k] int32, ascending.

        The targets are of S shares of R rows, one after another; part j has of share s the rows
        `edges[s, j]` to `edges[s, j + 1]`, and the parts have all of them.
        """
        targets = self.targets.contiguous().numpy()
        order = np.empty(len(targets), np.int32 if len(targets) < 1 << 31 else np.int64)
        part_of = np.empty(edges[:, -1].sum(), np.uint16 if edges.shape[1] <= 1 << 16 else np.int64)
        ends = _order_by_part(targets, edges, part_of, order)
        if not len(ends):
            raise _of_no_row(edges[:, -1].sum(), len(self.gradients))
        return np.split(order, ends[:-1])

    def sorted(self) -> Entries:
        """The entries in the order of their targets."""
        targets, order = self.targets.sort()
        return Entries(
            targets,
            self.gradients,
            order if self.sources is None else self.sources[order],
            None if self.weights is None else self.weights[order],
        )

    def begins(self, targets: Sequence[Sequence[int]]) -> list[list[int]]:
        """The first entry of each of `targets`, if the entries are sorted: numbers in lists of the
        same lengths. CUDA is waited for, once."""
        wanted = numbers_on(self.targets.device, targets).to(self.targets.dtype)
        found: list[list[int]] = torch.searchsorted(self.targets, wanted).tolist()
        return found

    def cut(self, low: int, high: int, moved: int) -> Entries:
        """Entries `low` to `high`, if sorted, for targets that are `moved` further on."""
        assert self.sources is not None
        return Entries(
            self.targets[low:high] + moved,
            self.gradients,
            self.sources[low:high],
            None if self.weights is None else self.weights[low:high],
        )

    @classmethod
    def joined(cls, parts: Sequence[Entries]) -> Entries:
        """The entries of all parts, which are sorted and have their gradients in common."""
        weights = [part.weights for part in parts if part.weights is not None]
        return cls(
            torch.cat([part.targets for part in parts]),
            parts[0].gradients,
            torch.cat([part.sources for part in parts if part.sources is not None]),
            torch.cat(weights) if weights else None,
        )

    def summed(self, count: int, buffer: Buffer | None = None) -> Tensor:
        """[count, D] float32: what the entries add up to at each target; in the `buffer`, if it is
        given."""
        gradients = self.gradients
        sums = of_shape((count, gradients.shape[1]), gradients, buffer).zero_()
        if not gradients.is_cuda:
            add_rows(sums, self.targets, gradients, self.sources, self.weights)
            return sums
        if self.sources is None and self.weights is None:
            return sums.index_add_(0, self.targets, gradients)
        for start in range(0, len(self.targets), COPIED_ROWS):  # bounds the memory of the copies
            block = slice(start, start + COPIED_ROWS)
            rows = (
                gradients[block]
                if self.sources is None
                else gradients.index_select(0, self.sources[block])
            )
            if self.weights is not None:
                rows = rows * self.weights[block].unsqueeze(1)
            sums.index_add_(0, self.targets[block], rows)
        return sums


@kernel
def _order_by_part(
    targets: npt.NDArray[Any], edges: I64, part_of: npt.NDArray[Any], order: npt.NDArray[Any]
) -> Any:
    """Fills `order` with the numbers of all entries, part by part, and `part_of` with the part of
    each row; returns where each part ends, or nothing where a target does not exist."""
    shares, count, size = len(edges), edges.shape[1] - 1, edges[0, -1]
    if not all_below(targets, shares * size):
        return np.empty(0, np.int64)
    for share in range(shares):
        for part in range(count):
            for row in range(edges[share, part], edges[share, part + 1]):
                part_of[share * size + row] = part
    ends = np.zeros(count + 1, np.int64)
    for target in targets:
        ends[np.int64(part_of[np.uintp(target)]) + 1] += 1
    for part in range(count):
        ends[part + 1] += ends[part]
    for number in range(len(targets)):
        own = np.int64(part_of[np.uintp(targets[number])])
        order[ends[own]] = number
        ends[own] += 1
    return ends[:-1]


class Chunks:
    """The rows that a step touches, in chunks that all ranks of a node take one after another.

    Chunk j has, of each share, `width` of the rows that any rank touched, from the j · `width`-th.
    A rank has gradients for some of them. Its peers know for which by the bits they exchanged, so
    that neither ids nor counts travel with the gradients.
    """

    def __init__(self, touched: Touched, own_share: int, width: int) -> None:
        """`own_share` is the number of this rank's share."""
        self._touched = touched
        self._own_share = own_share
        self._width = width
        found = _chunks_on_device if touched.mine.is_cuda else _chunks
        self._longest, self._edges, self._rows, self._mine_before, self._theirs_before = found(
            touched, own_share, width
        )
        self.count = len(self._theirs_before[0]) - 1

    @property
    def most(self) -> int:
        """Rows that a chunk has at most, of all shares."""
        return len(self._touched.anywhere) * min(self._width, self._longest)

    def rows(self, number: int, share: int | None = None) -> Tensor:
        """[n] int64, ascending: the rows of a chunk in one share, by default in this rank's own."""
        share = self._own_share if share is None else share
        first, last = number * self._width, (number + 1) * self._width
        if self._rows is None:
            first, last = self._edges[share, number : number + 2].tolist()
            bits = self._touched.anywhere.numpy()[share, first:last]
            return torch.from_numpy(np.flatnonzero(bits) + first)
        rows = self._rows[share][first:last]
        return rows if isinstance(rows, Tensor) else torch.from_numpy(rows.astype(np.int64))

    def sends(self, number: int) -> list[int]:
        """[S]: how many gradients of a chunk this rank has for each share."""
        return [before[number + 1] - before[number] for before in self._mine_before]

    def receives(self, number: int, rows: Tensor) -> tuple[list[int], Tensor]:
        """How many gradients of a chunk, whose `rows` in this rank's share these are, each rank of
        the node has for it; and for each of these r, by rank, which of the rows it is of, [r]
        int64."""
        touched = self._touched.by_rank[:, rows]
        counts = [before[number + 1] - before[number] for before in self._theirs_before]
        return counts, touched.nonzero()[:, 1]

    def entries(self, gradients: Entries) -> Iterator[Entries]:
        """The entries of each chunk. The targets of `gradients` are addresses; those of a chunk's
        entries count the rows of it that this rank touched, share by share."""
        if self.count <= 1:
            yield from [self._ranked(gradients)] * self.count
            return
        if gradients.targets.is_cuda:
            yield from self._cut(self._ranked(gradients).sorted())
            return
        targets, mine = gradients.targets.contiguous().numpy(), self._touched.mine.numpy()
        edges = self._edges
        for number, which in enumerate(gradients.of_parts(edges)):
            places = _places(targets, which, mine, edges[:, number], edges[:, number + 1])
            yield gradients.picked(which, torch.from_numpy(places))

    def _ranked(self, gradients: Entries) -> Entries:
        """The entries, whose targets count all the rows that this rank touched; a chunk has a run
        of these in each share."""
        order = self._touched.mine.flatten().cumsum(0, dtype=torch.int32)
        return gradients.onto(order[gradients.targets] - 1)

    def _cut(self, ranked: Entries) -> Iterator[Entries]:
        """The entries of each chunk, of all entries `_ranked` and sorted."""
        starts = accumulate((before[-1] for before in self._mine_before), initial=0)
        firsts = [
            [start + count for count in before]
            for start, before in zip(starts, self._mine_before, strict=False)
        ]
        cuts = ranked.begins(firsts)
        for number in range(self.count):
            taken = 0
            parts = []
            for first, at in zip(firsts, cuts, strict=True):
                parts.append(ranked.cut(at[number], at[number + 1], taken - first[number]))
                taken += first[number + 1] - first[number]
            yield Entries.joined(parts)


@kernel
def _places(
    targets: npt.NDArray[Any], which: npt.NDArray[Any], mine: Bools, firsts: I64, lasts: I64
) -> Any:
    """[k] int32: of the entries `which` of a chunk that has the rows `firsts` to `lasts` of each
    share, the places of their targets among the rows of it that this rank touched, share by share;
    -1 for a row that it did not."""
    size = np.uint64(mine.shape[1])
    places = np.full((lasts - firsts).sum(), -1, np.int32)
    begins = np.zeros(len(mine), np.int64)
    at = place = 0
    for share in range(len(mine)):
        begins[share] = at - firsts[share]
        for row in range(firsts[share], lasts[share]):
            if mine[share, row]:
                places[at] = place
                place += 1
            at += 1
    found = np.empty(len(which), np.int32)
    for i in range(len(which)):
        target = np.uint64(targets[np.uintp(which[i])])
        owner = target // size
        found[i] = places[begins[owner] + np.int64(target - owner * size)]
    return found


class _FoundChunks(NamedTuple):
    """The rows that any rank touched, and how many of them are in which chunk."""

    longest: int
    """Rows of the share that has the most of them."""
    edges: I64
    """[S, count + 1]: the rows from which each chunk has those of a share, and where the last one
    ends; only on the CPU."""
    rows: Sequence[Tensor | npt.NDArray[Any]] | None
    """The rows of each share; none where the bits, from edge to edge, say it in fewer bytes."""
    mine_before: Counts
    """[S, count + 1]: how many come before each chunk, in each share, of those that this rank has
    gradients for."""
    theirs_before: Counts
    """[ranks, count + 1]: the same, in this rank's share, of those that each rank of the node has
    some for."""


def _chunks(touched: Touched, own_share: int, width: int) -> _FoundChunks:
    anywhere = touched.anywhere.numpy()
    sizes = np.count_nonzero(anywhere, axis=1)
    kind = np.int32 if anywhere.shape[1] < 1 << 31 else np.int64
    keeps = sizes.sum() * np.dtype(kind).itemsize <= anywhere.nbytes
    rows = np.empty(sizes.sum() if keeps else 0, kind)
    edges, before = _count_chunks(
        touched.mine.numpy(),
        touched.by_rank.numpy(),
        anywhere,
        own_share,
        -(-sizes.max() // width),
        width,
        rows,
    )
    return _FoundChunks(
        int(sizes.max()),
        edges,
        np.split(rows, np.cumsum(sizes)[:-1]) if keeps else None,
        before[: len(sizes)].tolist(),
        before[len(sizes) :].tolist(),
    )


@kernel
def _count_chunks(
    mine: Bools,
    by_rank: Bools,
    anywhere: Bools,
    own_share: int,
    count: int,
    width: int,
    rows: npt.NDArray[Any],
) -> Any:
    """The edges, and the counts of both kinds; fills in the rows that any rank touched, share by
    share, where `rows` has room."""
    shares, size = anywhere.shape
    edges = np.full((shares, count + 1), size, np.int64)
    before = np.zeros((shares + len(by_rank), count + 1), np.int64)
    at = 0
    for share in range(shares):
        first = at
        for row in range(size):
            if anywhere[share, row]:
                if rows.size:
                    rows[at] = row
                number = (at - first) // width
                if at - first == number * width:
                    edges[share, number] = row
                before[share, number + 1] += mine[share, row]
                if share == own_share:
                    for rank in range(len(by_rank)):
                        before[shares + rank, number + 1] += by_rank[rank, row]
                at += 1
        edges[share, 0] = 0
    for part in range(len(before)):
        for number in range(count):
            before[part, number + 1] += before[part, number]
    return edges, before


def _chunks_on_device(touched: Touched, own_share: int, width: int) -> _FoundChunks:
    """`_chunks` by some forty operations of torch, on the device of the bits."""
    shares, size = touched.anywhere.shape
    every = touched.anywhere.flatten().nonzero().squeeze(1)
    # Of all rows there are millions, of those that are touched thousands.
    starts = torch.arange(shares + 1, device=every.device) * size
    sizes: list[int] = torch.searchsorted(every, starts).diff().tolist()
    union = [rows - size * i for i, rows in enumerate(every.split(sizes))]
    count = -(-max(sizes) // width)
    ends = width * torch.arange(count + 1, device=every.device)
    theirs = [(some, union[own_share]) for some in touched.by_rank]
    before = [
        torch.nn.functional.pad(some[rows].cumsum(0), (1, 0))[ends.clamp(max=len(rows))]
        for some, rows in [*zip(touched.mine, union, strict=True), *theirs]
    ]
    counts: Counts = torch.stack(before).tolist()
    return _FoundChunks(
        max(sizes), np.empty((0, 0), np.int64), union, counts[:shares], counts[shares:]
    )


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
    receives take turns in them. malloc, given back tensors of several sizes, would keep half as
    much again in pieces that fit none; CUDA's allocator hands them out anew."""
    if gradients.is_cuda:
        return [(None, None)] * IN_FLIGHT
    size = rows * gradients.shape[1] * gradients.element_size()
    return [(sent, received) for sent, received in np.empty((IN_FLIGHT, 2, size), np.uint8)]


@dataclass(frozen=True)
class Reduction:
    """Sums gradients over ranks and steps replicas by them, tier by tier; every rank must run the
    same collectives."""

    nodes: Nodes
    division: GradientDivision
    """TorchRec's, which is made once."""
    chunk_rows: int
    """Rows under way at a time, of all ranks of a node; bounds the memory of an update."""
    hot: bool = False
    """Whether the batch is hot. Then no all-to-all is made: all ranks of a node sum all rows that
    one of them touched, for they touch mostly the same."""

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
                summed = yield from self._across(summed, touched.by_node, rows)
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
        rows, by_node = touched
        width, few = self.chunk_rows, len(rows) < 1 << 31
        ranked = entries.onto(torch.searchsorted(rows, entries.targets, out_int32=few))
        firsts = [*range(0, len(rows), width), len(rows)]
        parts: Iterable[Entries] = [ranked]
        if len(rows) > width and not rows.is_cuda:
            which = ranked.of_parts(np.array([firsts]))
            places = ranked.targets.numpy()
            parts = (
                ranked.picked(own, torch.from_numpy(places[own] - first))
                for own, first in zip(which, firsts, strict=False)
            )
        elif len(rows) > width:
            whole = ranked.sorted()
            (cuts,) = whole.begins([firsts])
            each = zip(pairwise(cuts), firsts, strict=False)
            parts = (whole.cut(low, high, -first) for (low, high), first in each)

        def chunk(first: int, last: int, part: Entries) -> Collectives[None]:
            own = rows[first:last]
            columns = slice(first, last)
            summed = yield from self._across(part.summed(len(own)), by_node, columns)
            tier.share.update(own, summed.mul_(scale), optimizer)

        chunks = zip(pairwise(firsts), parts, strict=False)
        yield from in_flight((chunk(*of, part) for of, part in chunks), IN_FLIGHT)

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
        rank's share. `part` are this rank's, for all shares."""
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
        for share, (rows, own) in enumerate(zip(shares, sums.split(sends), strict=True)):
            padded[share].index_copy_(0, touched.mine[share, rows].nonzero().squeeze(1), own)
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

    def _across(
        self, sums: Tensor, by_node: Tensor, columns: Tensor | slice
    ) -> Collectives[Tensor]:
        """The sum over nodes of `sums` [n, D], the same on all nodes.

        They are of the rows that have the n `columns` of `by_node`, by which node touched them.

        Bytes in all: 2 (A - 1) n rows by a ring of A nodes over all rows, (A - 1) A m by gathering
        at most m touched ones of each node. The cheaper one is taken.
        """
        across = self.nodes.across
        if across.size == 1:
            return sums
        by_node = by_node[:, columns]
        most = int(by_node.sum(1).max()) if len(sums) else 0
        if across.size * most >= 2 * len(sums):
            # Even with nothing to send it counts as a step: chunks must keep their order.
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
