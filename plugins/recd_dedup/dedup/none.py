"""none: every sample keeps its own rows; the KJT that deduplication is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recd_plugins.config import Config
from recd_plugins.slots import Context

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch

__all__ = ["NoDedup", "NoneConfig", "build_none"]


@dataclass(frozen=True, kw_only=True)
class NoneConfig(Config):
    """Nothing to choose."""


class NoDedup:
    """Leaves batches as they are."""

    groups = ()

    def convert(self, batch: Batch) -> Batch:
        return batch


def build_none(config: NoneConfig, context: Context) -> NoDedup:
    return NoDedup()
