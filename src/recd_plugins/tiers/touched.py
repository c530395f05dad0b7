"""Which rows of a tier a step touches: told by bits, before any gradient moves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recd_plugins.tiers.nodes import Nodes

__all__ = ["Touched", "touched_anywhere", "touched_by_node"]


class Touched(NamedTuple):
    """Rows that at least one rank has a gradient for."""

    anywhere: Tensor
    """[W, R] bool: of each share of a node's W ranks; [1, R] where only this rank's is known."""
    by_node: Tensor
    """[N, R] bool: of this rank's share, by the node that touched it."""


def touched_anywhere(mine: Tensor, nodes: Nodes) -> Touched:
    """From the rows that each rank touched, of all shares: `mine` [W, R] bool.

    Every rank sends R/8 bytes to each other of its node, to its peers across nodes, and to its
    node again.
    """
    parts = nodes.node.all_to_all(_pack(mine)).wait()
    by_node = nodes.across.all_gather(_any(parts)).wait()
    shares = nodes.node.all_gather(_any(by_node)).wait()
    size = mine.shape[1]
    return Touched(_unpack(shares, size), _unpack(by_node, size))


def touched_by_node(mine: Tensor, nodes: Nodes) -> Touched:
    """From the rows of this rank's share that its node touched: `mine` [R] bool."""
    by_node = nodes.across.all_gather(_pack(mine)).wait()
    size = len(mine)
    return Touched(_unpack(_any(by_node).unsqueeze(0), size), _unpack(by_node, size))


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
