"""An exponentially decayed sum, in which the last value counts most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from recd_plugins.api import Config, Context, PoolingFactory, Range


@dataclass(frozen=True, kw_only=True)
class DecayConfig(Config):
    """How fast the weights of values decay."""

    half_life: Annotated[float, Range(gt=0)] = 4.0
    """The number of later values after which a value counts half."""


class Decay(nn.Module):
    """v = sum over j of 2^(-a_j / half_life) k_j, where a_j values come after the j-th."""

    def __init__(self, half_life: float) -> None:
        super().__init__()
        self.half_life = half_life

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        """[N, D] values in rows of `lengths` [B] become [B, D]."""
        rows = torch.arange(len(lengths), device=lengths.device)
        rows = torch.repeat_interleave(rows, lengths, output_size=len(values))
        last = lengths.cumsum(0) - 1
        ages = last[rows] - torch.arange(len(values), device=values.device)
        weights = torch.exp2(-ages / self.half_life)
        pooled = values.new_zeros(len(lengths), values.shape[1])
        return pooled.index_add(0, rows, weights.unsqueeze(1) * values)


def build_decay(config: DecayConfig, context: Context) -> PoolingFactory:
    return lambda dim: Decay(config.half_life)
