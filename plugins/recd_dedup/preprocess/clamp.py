"""Clamp: ids into a range."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from torch import nn

from recd_plugins.api import Config, Context, Range, RegistryError
from recd_plugins.api.data import Schema
from recd_plugins.api.rows import with_ids

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["Clamp", "ClampConfig", "build_clamp"]


@dataclass(frozen=True, kw_only=True)
class ClampConfig(Config):
    """The range, its ends in it."""

    low: Annotated[int, Range(ge=0, le=2**62)] = 0
    """Smaller ids become this one."""
    high: Annotated[int, Range(ge=0, le=2**62)]
    """Larger ids become this one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise RegistryError(f"must be at least low ({self.low}), but is {self.high}.", "high")


class Clamp(nn.Module):
    """id -> min(max(id, low), high); int32 ids stay int32 where the range allows it."""

    elementwise = True

    def __init__(self, low: int, high: int) -> None:
        super().__init__()
        self.low = low
        self.high = high

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        ids = features.values()
        if self.low > torch.iinfo(ids.dtype).max:
            ids = ids.long()
        return with_ids(features, ids.clamp(self.low, min(self.high, torch.iinfo(ids.dtype).max)))

    def schema(self, schema: Schema) -> Schema:
        return schema.replace(
            dataclasses.replace(
                feature, num_ids=max(self.low, min(self.high, feature.num_ids - 1)) + 1
            )
            for feature in schema.sparse
        )

    def extra_repr(self) -> str:
        return f"low={self.low}, high={self.high}"


def build_clamp(config: ClampConfig, context: Context) -> Clamp:
    """The record's build."""
    return Clamp(config.low, config.high)
