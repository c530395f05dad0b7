"""How ranks exchange ids, rows and gradients, where a topology says it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from recd_plugins.compat.both_ways import can_exchange_both_ways, exchange_both_ways
from recd_plugins.compat.uneven_gather import gather_unevenly
from recd_plugins.planning.cluster.topology import Topology

__all__ = ["exchange_as_measured"]


def exchange_as_measured(topology: Topology, group: ProcessGroup) -> str:
    """Have TorchRec's modules exchange both ways at once in the group, if the topology of each of
    its ranks says so; what became of it, in words, or nothing where none says so.

    Every rank must call it. Where no topology says so, the group exchanges as it did; but
    gradients of row-wise bags are gathered from ranks whose batches differ in size, too.
    """
    if not can_exchange_both_ways(group):
        return ""
    gather_unevenly()
    asked = int(bool(topology.both_ways))
    most = torch.tensor([asked, -asked], device="cpu")
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    some, all_but_none = most.tolist()
    if not some:
        return ""
    if -all_but_none != some:
        return "in turns, one way after the other: not all ranks' topologies have `both_ways`"
    exchange_both_ways(group)
    return "both ways at once, which the topology found faster than gloo's turns"
