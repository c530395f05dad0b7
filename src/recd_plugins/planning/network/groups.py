"""Process groups of a node's ranks, and of ranks across nodes."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

__all__ = ["own_group"]


def own_group(groups: Tensor) -> ProcessGroup | None:
    """Make all `groups` [n, size] of ranks, and return that of this rank; none if it is alone."""
    if groups.shape[1] == 1:
        return None
    own = None
    for ranks in groups.tolist():
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            own = group
    return own
