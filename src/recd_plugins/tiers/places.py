"""Where ranks are, and where a tier's rows lie over the ranks of a node."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from recd_plugins.errors import CapabilityError
from recd_plugins.planning.measured_topology import own_group
from recd_plugins.tiers.collectives import Peers

__all__ = ["Layout", "Nodes"]


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


class Layout:
    """How the `count` positions of a tier are dealt out to the W ranks of a node.

    Position p is row p // W of the share of rank p mod W, so that rows that are hot at the same
    time (low ids, say) are spread. A share has room for `share_rows` rows, the same on all ranks.
    """

    def __init__(self, count: int, ranks_per_node: int) -> None:
        self.count = count
        self.ranks_per_node = ranks_per_node
        self.share_rows = -(-count // ranks_per_node)

    @property
    def num_places(self) -> int:
        return self.share_rows * self.ranks_per_node

    def place(self, positions: Tensor) -> Tensor:
        """[n] places: all rows of rank 0's share come first, then rank 1's, and so on."""
        ranks = positions % self.ranks_per_node
        return ranks * self.share_rows + positions // self.ranks_per_node
