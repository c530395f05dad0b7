"""FirstX: the first n ids of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import fbgemm_gpu  # noqa: F401  # registers torch.ops.fbgemm
import torch
from torch import Tensor, nn

from recd_plugins.config import Config, Range
from recd_plugins.data.schema import Schema
from recd_plugins.slots import Context
from recd_plugins.sparse.keyed import with_ids

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["FirstX", "FirstXConfig", "build_first_x"]


@dataclass(frozen=True, kw_only=True)
class FirstXConfig(Config):
    """Where rows are cut."""

    n: Annotated[int, Range(ge=0, le=2**31 - 1)]
    """Ids that a row keeps: its first; shorter rows stay."""


class FirstX(nn.Module):
    """Row [x_1, ..., x_k] -> [x_1, ..., x_min(k, n)], its weights likewise."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        lengths = features.lengths()
        weights = features.weights_or_none()
        if weights is not None:  # fbgemm truncates no weights of every type, so their places
            places = torch.arange(weights.numel(), device=weights.device)
            weights = weights[self._truncated(places, lengths)]
        return with_ids(
            features,
            self._truncated(features.values(), lengths),
            lengths=lengths.clamp(max=self.n),
            weights=weights,
        )

    def _truncated(self, values: Tensor, lengths: Tensor) -> Tensor:
        truncated: Tensor = torch.ops.fbgemm.jagged_1d_to_truncated_values(values, lengths, self.n)
        return truncated

    def schema(self, schema: Schema) -> Schema:
        return schema

    def extra_repr(self) -> str:
        return f"n={self.n}"


def build_first_x(config: FirstXConfig, context: Context) -> FirstX:
    """The record's build."""
    return FirstX(config.n)
