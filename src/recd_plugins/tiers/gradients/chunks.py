"""Chunks of the rows that a step touches: replicas are updated chunk by chunk, which bounds the
memory that an update takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.tiers.gradients.entries import Entries
from recd_plugins.tiers.gradients.touched import Touched, TouchedCounts, TouchedRows

__all__ = ["Chunks"]

Bools: TypeAlias = npt.NDArray[np.bool_]
Counts: TypeAlias = list[list[int]]
I64: TypeAlias = npt.NDArray[np.int64]


class Chunks:
    """The rows that a step touches, in chunks that all ranks of a node take one after another.

    Chunk j has, of each share, `width` of the rows that any rank touched, from the j · `width`-th.
    A rank has gradients for some of them. Its peers know for which by the bits that they exchanged,
    so neither ids nor counts travel with the gradients.

    An example of two ranks of a node, as rank 0 sees it, whose share is 0; by a `width` of 2. Row 5
    was touched in another node.

        rows of             share 0    share 1
        any rank touched    1 4 5 7    0 2 6
        rank 0 touched      4          0 2 6
        rank 1 touched      1 4 7

        chunk 0             1 4        0 2        sends [1, 2], receives [1, 2]: of 4; of 1 and 4
        chunk 1             5 7        6          sends [0, 1], receives [0, 1]: of 7
    """

    def __init__(self, touched: Touched, own_share: int, width: int) -> None:
        """`own_share` is the number of this rank's share."""
        self._touched = touched
        self._own_share = own_share
        self._width = width
        find = _chunks_on_device if touched.mine.is_cuda else _chunks
        self._found = find(touched, own_share, width)
        self.count = len(self._found.theirs[0]) - 1

    @property
    def most(self) -> int:
        """Rows that a chunk has at most, of all shares."""
        return len(self._touched.anywhere) * min(self._width, self._found.longest)

    def rows(self, number: int, share: int | None = None) -> Tensor:
        """[n] int64, ascending: the rows of a chunk in one share, by default in this rank's own."""
        share = self._own_share if share is None else share
        first, last = number * self._width, (number + 1) * self._width
        if self._found.rows is None:
            first, last = self._found.edges[share, number : number + 2].tolist()
            bits = self._touched.anywhere.numpy()[share, first:last]
            return torch.from_numpy(np.flatnonzero(bits) + first)
        rows = self._found.rows[share][first:last]
        return rows if isinstance(rows, Tensor) else torch.from_numpy(rows.astype(np.int64))

    def sends(self, number: int) -> list[int]:
        """[S]: how many gradients of a chunk this rank has for each share."""
        return _in_chunk(self._found.mine, number)

    def receives(self, number: int, rows: Tensor) -> tuple[list[int], Tensor]:
        """The number of gradients that each rank of the node has for a chunk with these `rows` in
        this rank's share; and, rank by rank, which of the rows each of these r gradients is of,
        [r] int64."""
        theirs = TouchedRows(self._touched.by_rank[:, rows], _in_chunk(self._found.theirs, number))
        return theirs.counts, theirs.which()

    def of_nodes(self, number: int, rows: Tensor) -> TouchedRows:
        """Which of a chunk's `rows` in this rank's share each node touched."""
        bits = self._touched.by_node[:, rows]
        if self._found.nodes is not None:
            return TouchedRows(bits, _in_chunk(self._found.nodes, number))
        return TouchedRows(bits, bits.sum(1).tolist())

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
        edges = self._found.edges
        for number, which in enumerate(gradients.of_parts(edges)):
            first, last = edges[:, number], edges[:, number + 1]
            own = _targets_in_chunk(targets, which, mine, first, last)
            yield gradients.picked(which, torch.from_numpy(own))

    def _ranked(self, gradients: Entries) -> Entries:
        """The entries, with targets that count all rows which this rank touched; a chunk has a band
        of these in each share."""
        order = self._touched.mine.flatten().cumsum(0, dtype=torch.int32)
        return gradients.onto(order[gradients.targets] - 1)

    def _cut(self, ranked: Entries) -> Iterator[Entries]:
        """The entries of each chunk, of all entries `_ranked` and sorted."""
        starts = accumulate((before[-1] for before in self._found.mine), initial=0)
        firsts = [
            [start + count for count in before]
            for start, before in zip(starts, self._found.mine, strict=False)
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
def _targets_in_chunk(
    targets: npt.NDArray[Any], which: npt.NDArray[Any], mine: Bools, firsts: I64, lasts: I64
) -> Any:
    """[k] int32: the targets of the entries `which` of a chunk, as they count the rows of it that
    this rank touched, share by share; -1 for a row that it did not touch. The chunk has the rows
    `firsts` to `lasts` of each share."""
    size = np.uint64(mine.shape[1])
    numbers = np.full((lasts - firsts).sum(), -1, np.int32)
    begins = np.zeros(len(mine), np.int64)
    at = number = 0
    for share in range(len(mine)):
        begins[share] = at - firsts[share]
        for row in range(firsts[share], lasts[share]):
            if mine[share, row]:
                numbers[at] = number
                number += 1
            at += 1
    found = np.empty(len(which), np.int32)
    for i in range(len(which)):
        target = np.uint64(targets[np.uintp(which[i])])
        owner = target // size
        found[i] = numbers[begins[owner] + np.int64(target - owner * size)]
    return found


class _FoundChunks(NamedTuple):
    """The rows that any rank touched, and how many of them are in which chunk."""

    longest: int
    """Rows of the share that has the most of them."""
    edges: I64
    """[S, count + 1]: the row of each share with which each chunk begins, and where the last one
    ends; only on the CPU."""
    rows: Sequence[Tensor | npt.NDArray[Any]] | None
    """The touched rows of each share; None where the bits, from edge to edge, take fewer bytes."""
    mine: Counts
    """[S, count + 1]: the number of rows before each chunk, in each share, that this rank has
    gradients for."""
    theirs: Counts
    """[ranks, count + 1]: the same in this rank's share, for the gradients of each rank of the
    node."""
    nodes: Counts | None = None
    """[n_nodes, count + 1]: the same for those of each node; only on a GPU, which would be waited
    for if somebody counted them later."""


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
    """The edges, and the counts of both kinds. If `rows` has room, writes to it the rows that any
    rank touched, share by share."""
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
    """The result of `_chunks`, by torch's operations on the device of the bits, which is waited for
    once if there are several chunks."""
    counts = TouchedCounts.of(touched) if touched.counts is None else touched.counts
    longest = max(map(len, counts.rows))
    count = -(-longest // width)
    parts = touched.mine, touched.by_rank, touched.by_node
    if count > 1:
        before = _before_each_chunk(parts, counts.rows, own_share, count, width)
    else:  # one chunk has all that anybody touched
        totals = [*counts.mine, *counts.by_rank, *counts.by_node]
        before = [[0, total][: count + 1] for total in totals]
    each = iter(before)
    mine, theirs, nodes = ([*islice(each, len(bits))] for bits in parts)
    return _FoundChunks(longest, np.empty((0, 0), np.int64), counts.rows, mine, theirs, nodes)


def _before_each_chunk(
    parts: Sequence[Tensor], union: Sequence[Tensor], own_share: int, count: int, width: int
) -> Counts:
    """How many of each part's rows come before each chunk. `parts` are bits of each share, and then
    bits of this rank's own; chunks have the rows of the `union`, those that any rank touched."""
    ends = torch.arange(0, width * (count + 1), width, device=union[0].device)
    of_shares, *of_own = parts
    own = [(bits, union[own_share]) for part in of_own for bits in part]
    before = [
        torch.nn.functional.pad(bits[rows].cumsum(0), (1, 0))[ends.clamp(max=len(rows))]
        for bits, rows in [*zip(of_shares, union, strict=True), *own]
    ]
    counts: Counts = torch.stack(before).tolist()
    return counts


def _in_chunk(before: Counts, number: int) -> list[int]:
    return [one[number + 1] - one[number] for one in before]
