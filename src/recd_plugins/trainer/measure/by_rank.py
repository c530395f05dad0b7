"""Tensors of all ranks, by rank; every rank must call these functions."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["by_rank", "uneven_by_rank"]


def by_rank(mine: Tensor) -> list[Tensor]:
    """The tensor of each rank; all have one shape."""
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return every


def uneven_by_rank(mine: Tensor) -> list[Tensor]:
    """The [..., n] of each rank, whose n may differ."""
    count = mine.shape[-1]
    counts = [int(one) for one in by_rank(torch.tensor([count], device=mine.device))]
    padded = by_rank(pad(mine, (0, max(counts) - count)))
    return [part[..., :count] for part, count in zip(padded, counts, strict=True)]
