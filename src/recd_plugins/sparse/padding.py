"""Padding: the rows of length 0 by which every key of an IKJT has as many as the largest group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recd_plugins.sparse.groups import Groups

__all__ = ["real_rows"]


def real_rows(
    groups: Groups, unique_counts: Sequence[int], device: torch.device | None = None
) -> Tensor:
    """[keys * max(unique_counts)] bool: which rows are those of unique samples, and no padding."""
    by_group = zip(groups, unique_counts, strict=True)
    by_key = torch.tensor([count for group, count in by_group for _ in group], device=device)
    rows = torch.arange(max(unique_counts), device=device)
    return (rows < by_key[:, None]).view(-1)
