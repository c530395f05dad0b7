"""Sum, mean and max of a sequence, directly over the jagged values, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recd_plugins.api import Config, Context, PoolingFactory

__all__ = ["Reduce", "ReduceConfig", "build_max", "build_mean", "build_sum", "rows_of"]


@dataclass(frozen=True, kw_only=True)
class ReduceConfig(Config):
    """Sum, mean and max have no options."""


def rows_of(lengths: Tensor, num_values: int) -> Tensor:
    """[N]: the row of each value, for rows of `lengths` [B]."""
    rows = torch.arange(lengths.numel(), device=lengths.device)
    return torch.repeat_interleave(rows, lengths, output_size=num_values)


class Reduce(nn.Module):
    """v = sum, mean or max of the row's values; zeros for a row of length 0."""

    needs_query = False

    def __init__(self, mode: Literal["sum", "mean", "max"]) -> None:
        super().__init__()
        self.mode = mode
        self.takes_weights = mode != "max"

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        """[N, D] values in rows of `lengths` [B] become [B, D]."""
        if self.mode == "max":
            # Forward and backward of a bag take half the time of scatter_reduce's amax.
            every = torch.arange(values.shape[0], device=values.device)
            ends = F.pad(lengths.cumsum(0), (1, 0))
            return F.embedding_bag(every, values, ends, mode="max", include_last_offset=True)
        # Twice as fast as a bag, four times as segment_reduce (CPU, 30k values of 64).
        sums = values.new_zeros(lengths.numel(), values.shape[1])
        sums = sums.index_add(0, rows_of(lengths, values.shape[0]), values)
        return sums / lengths.clamp(min=1).unsqueeze(1) if self.mode == "mean" else sums

    def extra_repr(self) -> str:
        return self.mode


def build_sum(config: ReduceConfig, context: Context) -> PoolingFactory:
    return lambda dim: Reduce("sum")


def build_mean(config: ReduceConfig, context: Context) -> PoolingFactory:
    return lambda dim: Reduce("mean")


def build_max(config: ReduceConfig, context: Context) -> PoolingFactory:
    return lambda dim: Reduce("max")
