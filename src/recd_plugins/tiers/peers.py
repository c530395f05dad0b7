"""The ranks of a world, of a node and across nodes, and the collectives that they call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from recd_plugins.compat.both_ways import MOST_UNDER_WAY
from recd_plugins.compat.pytorch import all_gather_single, own_group, reduce_scatter_single
from recd_plugins.errors import CapabilityError

__all__ = ["Buffer", "Nodes", "Peers", "Pending", "of_shape"]


@dataclass
class Pending:
    """A tensor that a collective is filling, or that several collectives fill part by part."""

    tensor: Tensor
    work: dist.Work | Sequence[dist.Work] | None
    sent: Tensor | None = None
    """What the collective reads, if not `tensor` itself."""
    held_in: list[Pending] | None = None
    """The list that holds it until somebody has waited for it."""

    def wait(self) -> Tensor:
        """The tensor, filled.

        On CUDA another stream may wait than the one that began it. The allocator must know, or the
        first stream's next tensors may come to lie where this one still reads.
        """
        if self.work is not None:
            for work in self.work if isinstance(self.work, Sequence) else [self.work]:
                work.wait()
            self.work = None
            if self.held_in is not None:
                self.held_in[:] = [one for one in self.held_in if one is not self]
        for used in (self.tensor, self.sent):
            if used is not None and used.is_cuda:
                used.record_stream(torch.cuda.current_stream(used.device))
        self.sent = None
        return self.tensor


Buffer: TypeAlias = npt.NDArray[np.uint8]


def of_shape(shape: Sequence[int], like: Tensor, buffer: Buffer | None) -> Tensor:
    """An uninitialised tensor of the type and on the device of `like`; on the CPU it lies in the
    bytes of the `buffer`, if they are enough."""
    count = math.prod(shape)
    if buffer is None or not 0 < count * like.element_size() <= len(buffer):
        return like.new_empty(tuple(shape))
    return torch.frombuffer(buffer, dtype=like.dtype, count=count).view(tuple(shape))


class Peers:
    """The ranks of one group, by their order; a rank alone hands everything to itself.

    Every peer must call each method, with tensors of one shape unless it says otherwise.
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group
        self.size = 1 if group is None else group.size()
        self.rank = 0 if group is None else group.rank()
        self._under_way: list[Pending] = []

    def all_reduce(self, mine: Tensor) -> Pending:
        """The sum over peers, in place."""
        if self._group is None or not mine.numel():
            return Pending(mine, None)
        return Pending(mine, dist.all_reduce(mine, group=self._group, async_op=True))

    def most(self, mine: Tensor) -> Tensor:
        """The largest of the peers' numbers, in place."""
        if self._group is not None:
            dist.all_reduce(mine, dist.ReduceOp.MAX, self._group)
        return mine

    def all_gather(self, mine: Tensor, buffer: Buffer | None = None) -> Pending:
        """[size, *mine.shape], by peer; in the `buffer`, if it is given."""
        if self._group is None:
            return Pending(mine.unsqueeze(0), None)
        every, mine = of_shape((self.size, *mine.shape), mine, buffer), mine.contiguous()
        if not mine.numel():
            return Pending(every, None)
        if mine.is_cuda:
            work = all_gather_single(every.flatten(0, 1), mine, self._group, async_op=True)
            return Pending(every, work, mine)
        # gloo's own gather may send before it says that it is ready to receive, and then the two
        # ways of a connection take turns.
        every[self.rank] = mine
        peers = [peer for peer in range(self.size) if peer != self.rank]
        works = [dist.irecv(every[peer], group=self._group, group_src=peer) for peer in peers]
        works += [dist.isend(mine, group=self._group, group_dst=peer) for peer in peers]
        return self._kept(Pending(every, [work for work in works if work is not None]))

    def _kept(self, pending: Pending) -> Pending:
        """gloo drops messages whose work nobody holds: the next would come in their place."""
        pending.held_in = self._under_way
        self._under_way.append(pending)
        if len(self._under_way) > MOST_UNDER_WAY:
            self._under_way[0].wait()
        return pending

    def reduce_scatter(self, parts: Tensor) -> Pending:
        """This peer's n of the sum over peers of `parts` [size · n, ...], which it may use up."""
        if self._group is None:
            return Pending(parts, None)
        if parts.is_cuda:
            own = parts.new_empty((len(parts) // self.size, *parts.shape[1:]))
            work = reduce_scatter_single(own, parts, group=self._group, async_op=True)
            return Pending(own, work, parts)
        # gloo would sum all parts on all peers, for 1.6 times the bytes.
        each = parts.chunk(self.size)
        works = [
            dist.reduce(part, group=self._group, group_dst=peer, async_op=True)
            for peer, part in enumerate(each)
        ]
        return Pending(each[self.rank], works)

    def all_to_all(
        self,
        parts: Tensor,
        sends: list[int] | None = None,
        receives: list[int] | None = None,
        buffer: Buffer | None = None,
    ) -> Pending:
        """The first `sends[0]` of `parts` [n, ...] go to peer 0, and so on; `receives[p]` come
        back from peer p, into the `buffer`, if it is given. Without `sends`, all peers are sent
        equally many."""
        if self._group is None:
            return Pending(parts, None)
        count = len(parts) if receives is None else sum(receives)
        received = of_shape((count, *parts.shape[1:]), parts, buffer)
        parts = parts.contiguous()
        work = dist.all_to_all_single(received, parts, receives, sends, self._group, async_op=True)
        return Pending(received, work, parts)


class Nodes:
    """A world of `n_nodes` × `ranks_per_node` ranks, as one of them sees it.

    Rank r is rank r mod `ranks_per_node` of node r / `ranks_per_node`, as torchrun counts them.
    """

    def __init__(self, world: ProcessGroup, ranks_per_node: int) -> None:
        """Every rank of `world` must make one, for that makes process groups."""
        size = world.size()
        if size % ranks_per_node:
            raise CapabilityError(
                f"tiers: {size} ranks are no whole number of nodes of {ranks_per_node}. Set "
                "topology.ranks_per_node to a divisor of the world size, or start as many ranks "
                "on each node (torchrun --nproc-per-node)."
            )
        ranks = torch.tensor(dist.get_process_group_ranks(world), device="cpu").view(
            -1, ranks_per_node
        )
        self.world = Peers(world)
        self.node = Peers(own_group(ranks, world))
        """The ranks of this node."""
        self.across = Peers(own_group(ranks.T, world))
        """The ranks of all nodes whose place in their node is this one's."""

    @property
    def n_nodes(self) -> int:
        return self.across.size

    @property
    def ranks_per_node(self) -> int:
        return self.node.size
