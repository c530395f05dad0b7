"""Who shares a node with whom: the groups of ranks that tiers exchange in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from recd_plugins.errors import CapabilityError
from recd_plugins.planning.measured_topology import own_group

__all__ = ["Nodes", "Peers", "Pending"]


MOST_UNDER_WAY = 64
"""Gathers that nobody has waited for yet, as those of a batch without a backward: past that the
oldest, which every peer began before, is waited for."""


@dataclass
class Pending:
    """A tensor that a collective is filling, or several together."""

    tensor: Tensor
    work: dist.Work | Sequence[dist.Work] | None

    def wait(self) -> Tensor:
        if self.work is not None:
            for work in self.work if isinstance(self.work, Sequence) else [self.work]:
                work.wait()
            self.work = None
        return self.tensor


class Peers:
    """Ranks that exchange, by their order; a rank alone hands everything to itself.

    Every peer must call each method, with tensors of one shape but where it says otherwise.
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group
        self.size = 1 if group is None else group.size()
        self.rank = 0 if group is None else group.rank()
        self._under_way: list[Pending] = []

    def all_reduce(self, mine: Tensor) -> Pending:
        """The sum over peers, in place."""
        if self._group is None:
            return Pending(mine, None)
        return Pending(mine, dist.all_reduce(mine, group=self._group, async_op=True))

    def most(self, mine: int, device: torch.device) -> int:
        """The largest of the peers' numbers."""
        if self._group is None:
            return mine
        most = torch.tensor(mine, device=device)
        dist.all_reduce(most, dist.ReduceOp.MAX, self._group)
        return int(most)

    def all_gather(self, mine: Tensor) -> Pending:
        """[size, *mine.shape], by peer."""
        if self._group is None:
            return Pending(mine.unsqueeze(0), None)
        every, mine = mine.new_empty((self.size, *mine.shape)), mine.contiguous()
        if mine.is_cuda:
            work = dist.all_gather_into_tensor(
                every.flatten(0, 1), mine, self._group, async_op=True
            )
            return Pending(every, work)
        # gloo's own gather may send before it says that it is ready to receive, and then the two
        # ways of a connection take turns.
        every[self.rank] = mine
        peers = [peer for peer in range(self.size) if peer != self.rank and mine.numel()]
        works = [dist.irecv(every[peer], group=self._group, group_src=peer) for peer in peers]
        works += [dist.isend(mine, group=self._group, group_dst=peer) for peer in peers]
        return self._kept(Pending(every, [work for work in works if work is not None]))

    def _kept(self, pending: Pending) -> Pending:
        """gloo drops messages whose work nobody holds: the next would come in their place."""
        self._under_way = [one for one in self._under_way if one.work is not None]
        self._under_way.append(pending)
        if len(self._under_way) > MOST_UNDER_WAY:
            self._under_way[0].wait()
        return pending

    def reduce_scatter(self, parts: Tensor) -> Pending:
        """Of `parts` [size · n, ...], which it may use, the sum over peers of this one's n."""
        if self._group is None:
            return Pending(parts, None)
        if parts.is_cuda:
            own = parts.new_empty((len(parts) // self.size, *parts.shape[1:]))
            work = dist.reduce_scatter_single(own, parts, group=self._group, async_op=True)
            return Pending(own, work)
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
    ) -> Pending:
        """Of `parts` [n, ...] the first `sends[0]` go to peer 0, and so on; as many of each peer
        come back. Without `sends`, all are sent equally many."""
        if self._group is None:
            return Pending(parts, None)
        count = len(parts) if receives is None else sum(receives)
        received = parts.new_empty((count, *parts.shape[1:]))
        work = dist.all_to_all_single(
            received, parts.contiguous(), receives, sends, self._group, async_op=True
        )
        return Pending(received, work)


class Nodes:
    """A world of `n_nodes` × `ranks_per_node` ranks, as one of them sees it.

    Rank r is rank r mod `ranks_per_node` of node r / `ranks_per_node`, as torchrun counts them.
    """

    def __init__(self, world: ProcessGroup, ranks_per_node: int) -> None:
        """Every rank of `world` must call it, as it makes groups."""
        size = world.size()
        if size % ranks_per_node:
            raise CapabilityError(
                f"tiers: {size} ranks are no whole number of nodes of {ranks_per_node}. Set "
                "topology.ranks_per_node to a divisor of the world size, or start as many ranks "
                "on each node (torchrun --nproc-per-node)."
            )
        ranks = torch.tensor(dist.get_process_group_ranks(world)).view(-1, ranks_per_node)
        self.world = Peers(world)
        self.node = Peers(own_group(ranks))
        """The ranks of this node."""
        self.across = Peers(own_group(ranks.T))
        """The ranks of all nodes whose place in their node is this one's."""

    @property
    def n_nodes(self) -> int:
        return self.across.size

    @property
    def ranks_per_node(self) -> int:
        return self.node.size
