"""A pooling: the sum of a sequence's embeddings, scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from recd_plugins.api import Config, Context, PoolingFactory, PoolingRecord, Range, hookimpl


@dataclass(frozen=True, kw_only=True)
class NewPluginConfig(Config):
    """The options of new_plugin."""

    scale: Annotated[float, Range(gt=0)] = 0.5
    """The factor by which the sum is multiplied."""


class NewPlugin(nn.Module):
    """v = scale * sum of k_j over a row's embeddings k_j; an empty row becomes zeros."""

    needs_query = False

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        """[N, D] values in rows of `lengths` [B] become [B, D]."""
        return self.scale * torch.segment_reduce(values, "sum", lengths=lengths)


def build(config: NewPluginConfig, context: Context) -> PoolingFactory:
    return lambda dim: NewPlugin(config.scale)


@hookimpl
def recd_pooling() -> list[PoolingRecord[NewPluginConfig]]:
    return [
        PoolingRecord(
            name="new_plugin",
            summary="A scaled sum.",
            config=NewPluginConfig,
            build=build,
        )
    ]
