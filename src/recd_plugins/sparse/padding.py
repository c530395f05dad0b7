"""Padding: the rows of length 0 by which every key of an IKJT has as many as the largest group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recd_plugins.sparse.groups import Groups

__all__ = ["is_padded", "real_rows"]


def real_rows(
    groups: Groups, unique_counts: Sequence[int], device: torch.device | None = None
) -> Tensor:
    """[keys * max(unique_counts)] bool: which rows are those of unique samples, and no padding."""
    by_group = zip(groups, unique_counts, strict=True)
    by_key = torch.tensor([count for group, count in by_group for _ in group], device=device)
    rows = torch.arange(max(unique_counts), device=device)
    return (rows < by_key[:, None]).view(-1)


def is_padded(groups: Groups, unique_counts: Sequence[int], lengths: Tensor) -> bool:
    """Whether all rows behind those of unique samples are of length 0."""
    rows = lengths.view(-1, max(unique_counts))
    some = rows.numpy() if rows.is_cpu else rows  # small slices cost a fifth of what torch takes
    stop = 0
    for group, count in zip(groups, unique_counts, strict=True):
        start, stop = stop, stop + len(group)
        if some[start:stop, count:].any():
            return False
    return True
