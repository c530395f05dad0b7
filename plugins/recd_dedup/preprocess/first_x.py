"""FirstX: the first n ids of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from torch import nn

from recd_plugins.api import Config, Context, Range
from recd_plugins.api.data import Schema
from recd_plugins.api.rows import spread_rows, with_ids

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
        starts, weights = features.offsets()[:-1], features.weights_or_none()
        lengths = features.lengths().clamp(max=self.n)
        return with_ids(
            features,
            spread_rows(features.values(), starts, lengths),
            lengths=lengths,
            weights=None if weights is None else spread_rows(weights, starts, lengths),
        )

    def schema(self, schema: Schema) -> Schema:
        return schema

    def extra_repr(self) -> str:
        return f"n={self.n}"


def build_first_x(config: FirstXConfig, context: Context) -> FirstX:
    """The record's build."""
    return FirstX(config.n)
