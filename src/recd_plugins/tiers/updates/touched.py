"""Which rows of a tier a step touches: told by bits, before any gradient moves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recd_plugins.tiers.errand import Collectives
from recd_plugins.tiers.nodes import Nodes

__all__ = ["Touched", "touched_everywhere", "touched_in_nodes"]


class Touched(NamedTuple):
    """Who has a gradient for which rows."""

    mine: Tensor
    """[W, R] bool: this rank, of each share of the tier."""
    by_rank: Tensor
    """[W, R] bool: each rank of this node, of this rank's share."""
    by_node: Tensor
    """[N, R] bool: each node, of this rank's share."""
    anywhere: Tensor
    """[W, R] bool: any rank at all, of each share."""


def touched_everywhere(mine: Tensor, nodes: Nodes, *, hot: bool = False) -> Collectives[Touched]:
    """From the rows that each rank touched, of all shares: `mine` [W, R] bool.

    Every rank sends R/8 bytes to each other of its node, to its peers across nodes, and to its
    node again. Of a hot batch it sends its node all W · R/8 at first, by no all-to-all.
    """
    if hot:
        every = yield nodes.node.all_gather(_pack(mine))
        by_rank = every[:, nodes.node.rank]
    else:
        by_rank = yield nodes.node.all_to_all(_pack(mine))
    by_node = yield nodes.across.all_gather(_any(by_rank))
    anywhere = yield nodes.node.all_gather(_any(by_node))
    size = mine.shape[1]
    return Touched(mine, *(_unpack(bits, size) for bits in (by_rank, by_node, anywhere)))


def touched_in_nodes(mine: Tensor, nodes: Nodes) -> Collectives[Tensor]:
    """[N, R] bool by node, from the rows of this rank's share that its node touched: `mine` [R]."""
    by_node = yield nodes.across.all_gather(_pack(mine))
    return _unpack(by_node, len(mine))


def _any(packed: Tensor) -> Tensor:
    """The union of sets `packed` [n, R/8]."""
    union = packed[0].clone()
    for one in packed[1:]:
        union |= one
    return union


def _pack(bits: Tensor) -> Tensor:
    """[..., R] bool as [..., R/8] uint8."""
    if not bits.is_cuda:
        return torch.from_numpy(np.packbits(bits.numpy(), axis=-1, bitorder="little"))
    eighths = torch.nn.functional.pad(bits, (0, -bits.shape[-1] % 8)).unflatten(-1, (-1, 8))
    weights = 1 << torch.arange(8, dtype=torch.uint8, device=bits.device)
    packed: Tensor = (eighths * weights).sum(-1, dtype=torch.uint8)
    return packed


def _unpack(packed: Tensor, size: int) -> Tensor:
    """The inverse of `_pack`."""
    if not packed.is_cuda:
        bits = np.unpackbits(packed.numpy(), axis=-1, count=size, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> shifts) & 1).flatten(-2)[..., :size].bool()
