"""Which rank, or node, has gradients for which replicas. All ranks learn this by bits, or by row
numbers, before any gradient moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import DataError
from recd_plugins.planning.prices.cost import NUMBER_BITS
from recd_plugins.sparse.rows.memory import all_below
from recd_plugins.tiers.collectives import Collectives
from recd_plugins.tiers.peers import Nodes

__all__ = [
    "Touched",
    "TouchedByNode",
    "TouchedCounts",
    "TouchedRows",
    "exchange_touched",
    "exchange_touched_by_node",
    "marked",
]


class Touched(NamedTuple):
    """The ranks that have a gradient for rows of the tier `replicated`, and for which."""

    mine: Tensor
    """[S, R] bool: the rows of each share that this rank touched; where there is one share, that
    any rank touched."""
    by_rank: Tensor
    """[ranks_per_node, R] bool: the rows of this rank's share that each rank of this node touched;
    or [1, R], where there is one share."""
    by_node: Tensor
    """[n_nodes, R] bool: the rows of this rank's share that each node touched."""
    anywhere: Tensor
    """[S, R] bool: the rows of each share that any rank touched."""
    counts: TouchedCounts | None = None
    """Only on a GPU, which backward would otherwise wait for."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of it."""
        rows = () if self.counts is None else self.counts.rows
        return [self.mine, self.by_rank, self.by_node, self.anywhere, *rows]


class TouchedCounts(NamedTuple):
    """How many rows the bits of `Touched` stand for, and which."""

    rows: Sequence[Tensor]
    """The rows of each share that any rank touched, [n] int64, ascending."""
    mine: list[int]
    """[S]: how many of them this rank touched."""
    by_rank: list[int]
    """[ranks_per_node]: how many of this rank's share each rank of this node touched."""
    by_node: list[int]
    """[n_nodes]: the same of each node."""

    @classmethod
    def of(cls, touched: Touched) -> TouchedCounts:
        """A GPU is waited for twice."""
        size = touched.anywhere.shape[1]
        parts = touched.anywhere, touched.mine, touched.by_rank, touched.by_node
        counts = iter(torch.cat([bits.sum(1) for bits in parts]).tolist())
        sizes, *others = ([*islice(counts, len(bits))] for bits in parts)
        every = touched.anywhere.flatten().nonzero().squeeze(1).split(sizes)
        rows = [one - share * size if share else one for share, one in enumerate(every)]
        return cls(rows, *others)


def exchange_touched(mine: Tensor, nodes: Nodes, *, hot: bool = False) -> Collectives[Touched]:
    """Each rank says which rows of all shares it touched: `mine` [S, R] bool.

    Every rank sends R/8 bytes to each other of its node, to its peers across nodes, and to its node
    again. For a hot batch it first sends its node the bits of all shares, by an all-gather and no
    all-to-all. Where there is one node with one share it sends R/8 bytes once: its ranks then have
    gradients for the same rows, some of them zeros.
    """
    alone, size = nodes.n_nodes == 1, mine.shape[1]
    if alone and len(mine) == 1:
        every = yield nodes.node.all_gather(_pack(mine))
        anywhere = _unpack(_any(every), size)
        return _counted(anywhere, anywhere, anywhere, anywhere)
    if hot:
        every = yield nodes.node.all_gather(_pack(mine))
        by_rank = every[:, nodes.node.rank]
        if alone:  # no other node has marks
            of_ranks = _unpack(by_rank, size)
            by_node = of_ranks.any(0, keepdim=True)
            return _counted(mine, of_ranks, by_node, _unpack(_any(every), size))
    else:
        by_rank = yield nodes.node.all_to_all(_pack(mine))
    of_ranks = _unpack(by_rank, size)
    by_node = yield nodes.across.all_gather(_any(by_rank))
    of_nodes = _unpack(by_node, size)
    anywhere = yield nodes.node.all_gather(_any(by_node))
    return _counted(mine, of_ranks, of_nodes, _unpack(anywhere, size))


def _counted(mine: Tensor, by_rank: Tensor, by_node: Tensor, anywhere: Tensor) -> Touched:
    touched = Touched(mine, by_rank, by_node, anywhere)
    return touched._replace(counts=TouchedCounts.of(touched)) if mine.is_cuda else touched


class TouchedByNode(NamedTuple):
    """The rows of this rank's share of the tier `per_node` that nodes have gradients for."""

    rows: Tensor
    """[u] int64, ascending: those that any node touched."""
    by_node: Tensor
    """[n_nodes, u] bool: which of them each node touched."""
    counts: list[int] | None = None
    """[n_nodes]: how many each node touched; only on a GPU, and of several nodes."""


def exchange_touched_by_node(ids: Tensor, size: int, nodes: Nodes) -> Collectives[TouchedByNode]:
    """Each node says which of the `size` rows of this rank's share it touched: `ids` [n], in any
    order and several times.

    Every rank tells its peers across nodes how many they are, and then sends 4 bytes for each, or
    R/8 bytes if that is less. On CUDA the processor would wait for the counts, so each rank sends
    the bits at once.
    """
    if not ids.is_cuda:
        mine = ids.unique()
        counts = (
            (yield nodes.across.all_gather(torch.tensor([len(mine)], device="cpu")))
            .flatten()
            .tolist()
        )
        most = max(counts)
        if NUMBER_BITS * most < size:
            sent = mine.new_zeros(most, dtype=torch.int32)
            sent[: len(mine)] = mine
            every = yield nodes.across.all_gather(sent)
            return _together([one[:n] for one, n in zip(every, counts, strict=True)])
    packed = yield nodes.across.all_gather(_pack(marked(ids, size)))
    by_node = _unpack(packed, size)
    rows = by_node.any(0).nonzero().squeeze(1)
    several = ids.is_cuda and len(by_node) > 1
    return TouchedByNode(rows, by_node[:, rows], by_node.sum(1).tolist() if several else None)


class TouchedRows(NamedTuple):
    """Which of m rows each of several ranks touched, or each of several nodes."""

    bits: Tensor
    """[n, m] bool."""
    counts: list[int]
    """How many of the rows each touched."""

    @classmethod
    def of_chunks(cls, touched: TouchedByNode, firsts: Sequence[int]) -> list[TouchedRows]:
        """Those of each chunk of the rows, from one of `firsts` to the next. A GPU is waited for
        once if there are several chunks."""
        bits, counted = touched.by_node, touched.counts
        if counted is not None and len(firsts) == 2:
            return [cls(bits, counted)]
        parts = [bits[:, first:last] for first, last in pairwise(firsts)]
        sums = [part.sum(1) for part in parts]
        counts: list[list[int]] = torch.stack(sums).tolist() if sums else []
        return list(map(cls, parts, counts))

    def which(self) -> Tensor:
        """[sum of `counts`] int64: the numbers, among the m, of those that each touched, ascending;
        one after another. A GPU is not waited for."""
        if not self.bits.is_cuda:
            return self.bits.nonzero()[:, 1]
        touched_first = (~self.bits).view(torch.uint8).argsort(dim=1, stable=True)
        each = zip(touched_first, self.counts, strict=True)
        return torch.cat([numbers[:count] for numbers, count in each])


def _together(each: Sequence[Tensor]) -> TouchedByNode:
    """The rows that each node touched, which ascend."""
    rows = torch.cat(list(each)).unique()
    by_node = torch.zeros(len(each), len(rows), dtype=torch.bool, device="cpu")
    for touched, own in zip(by_node, each, strict=True):
        touched[torch.searchsorted(rows, own)] = True
    return TouchedByNode(rows.long(), by_node)


def _any(packed: Tensor) -> Tensor:
    """The union of sets `packed` [n, R/8]."""
    return reduce(torch.bitwise_or, packed.unbind())


def _pack(bits: Tensor) -> Tensor:
    """[..., R] bool as [..., R/8] uint8."""
    if not bits.is_cuda:
        return torch.from_numpy(np.packbits(bits.numpy(), axis=-1, bitorder="little"))
    if missing := -bits.shape[-1] % 8:
        bits = torch.nn.functional.pad(bits, (0, missing))
    worth = bits.unflatten(-1, (-1, 8)) * _worth_of_bits(bits.device)
    packed: Tensor = worth.sum(-1, dtype=torch.uint8)
    return packed


def _unpack(packed: Tensor, size: int) -> Tensor:
    """The inverse of `_pack`."""
    if not packed.is_cuda:
        bits = np.unpackbits(packed.numpy(), axis=-1, count=size, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))
    eighths: Tensor = packed.unsqueeze(-1) & _worth_of_bits(packed.device)
    return eighths.flatten(-2)[..., :size].bool()


@cache
def _worth_of_bits(device: torch.device) -> Tensor:
    """[8] uint8: what each bit of a byte is worth. It is kept on a GPU, for all streams: the
    processor waits until it is there."""
    return torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=device)


def marked(rows: Tensor, count: int) -> Tensor:
    """[count] bool: which of so many rows are among `rows` [n] int32 or int64."""
    marked = torch.zeros(count, dtype=torch.bool, device=rows.device)
    if rows.is_cuda:
        marked.index_fill_(0, rows.long(), True)
    else:
        if not _mark(rows.numpy(), marked.numpy()):
            raise DataError(
                f"tiers: some id has a row that is none of {count} of its tier. This happens if "
                "tier plans differ between ranks: give all ranks the same plan."
            )
    return marked


@kernel
def _mark(rows: npt.NDArray[Any], marked: npt.NDArray[np.bool_]) -> bool:
    """Marks rows. If a row does not exist, marks nothing and returns False."""
    if not all_below(rows, len(marked)):
        return False
    for row in rows:
        marked[np.uintp(row)] = True
    return True
