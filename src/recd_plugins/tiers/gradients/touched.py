"""Which rank, or node, has gradients for which replicas. All ranks learn this by bits, or by row
numbers, before any gradient moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from itertools import pairwise
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
        return Touched(anywhere, anywhere, anywhere, anywhere)
    if hot:
        every = yield nodes.node.all_gather(_pack(mine))
        by_rank = every[:, nodes.node.rank]
        if alone:  # no other node has marks
            of_ranks = _unpack(by_rank, size)
            by_node = of_ranks.any(0, keepdim=True)
            return Touched(mine, of_ranks, by_node, _unpack(_any(every), size))
    else:
        by_rank = yield nodes.node.all_to_all(_pack(mine))
    # Each is unpacked as it comes: on CUDA the last one is waited for on another stream.
    of_ranks = _unpack(by_rank, size)
    by_node = yield nodes.across.all_gather(_any(by_rank))
    of_nodes = _unpack(by_node, size)
    anywhere = yield nodes.node.all_gather(_any(by_node))
    return Touched(mine, of_ranks, of_nodes, _unpack(anywhere, size))


class TouchedByNode(NamedTuple):
    """The rows of this rank's share of the tier `per_node` that nodes have gradients for."""

    rows: Tensor
    """[u] int64, ascending: those that any node touched."""
    by_node: Tensor
    """[n_nodes, u] bool: which of them each node touched."""


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
    return TouchedByNode(rows, by_node[:, rows])


class TouchedRows(NamedTuple):
    """Which of m rows each of several ranks touched, or each of several nodes."""

    bits: Tensor
    """[n, m] bool."""
    counts: list[int]
    """How many of the rows each touched."""

    @classmethod
    def of_chunks(cls, bits: Tensor, firsts: Sequence[int]) -> list[TouchedRows]:
        """Those of each chunk of the rows, from one of `firsts` to the next. However many chunks
        there are, a GPU is waited for once."""
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
