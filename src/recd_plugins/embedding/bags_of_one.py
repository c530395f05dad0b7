"""Sharders whose modules look the rows of sequences up as bags of one, on a CPU."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection

from recd_plugins.compat.bags_of_one import look_up_as_bags
from recd_plugins.embedding.wrapped_sharder import ShownSharder, WrappedSharder

__all__ = ["with_bags_of_one"]


def with_bags_of_one(
    sharders: Iterable[ModuleSharder[nn.Module]],
) -> list[ModuleSharder[nn.Module]]:
    """The sharders, whose kernels for the CPU do so where weights are the same; those of bags alone
    as they are."""
    return [ShownSharder(one, look_up_as_bags) if _yields_rows(one) else one for one in sharders]


def _yields_rows(sharder: ModuleSharder[nn.Module]) -> bool:
    """Whether it shards sequences, or may have the rows of bags travel, as tiers do."""
    sequences = (EmbeddingCollection, ManagedCollisionEmbeddingCollection)
    return issubclass(sharder.module_type, sequences) or isinstance(sharder, WrappedSharder)
