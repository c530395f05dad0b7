"""none: every sample keeps its own rows; the KJT that deduplication is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recd_plugins.api import Config, Context

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.api.batch import Columns, Groups

__all__ = ["NoDedup", "NoneConfig", "build_none"]


@dataclass(frozen=True, kw_only=True)
class NoneConfig(Config):
    """Nothing to choose."""


class NoDedup:
    """Leaves batches as they are."""

    groups: Groups = ()

    def convert(self, features: Columns) -> KeyedJaggedTensor:
        return features.to_kjt()


def build_none(config: NoneConfig, context: Context) -> NoDedup:
    return NoDedup()
