"""The embedding collections of a model, with the configs of their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torchrec.modules.embedding_configs import BaseEmbeddingConfig

__all__ = ["embedding_collections", "fused_collections", "has_sequences", "with_plain_collections"]


def embedding_collections(
    model: nn.Module,
) -> Iterator[tuple[str, nn.Module, Sequence[BaseEmbeddingConfig]]]:
    """The path of each collection in the model, the collection, and its tables."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection):
            yield path, module, module.embedding_bag_configs()
        elif isinstance(module, EmbeddingCollection):
            yield path, module, module.embedding_configs()


def has_sequences(model: nn.Module) -> bool:
    """Whether one of its collections yields a row for each id, rather than a bag of a sample's."""
    from torchrec.modules.embedding_modules import EmbeddingCollection

    return any(isinstance(one, EmbeddingCollection) for _, one, _ in embedding_collections(model))


def fused_collections(
    model: nn.Module,
) -> Iterator[tuple[nn.Module, Sequence[BaseEmbeddingConfig]]]:
    """Each collection in the model that holds its tables' optimizer itself, as TorchRec's
    `fuse_embedding_optimizer` makes them, and its tables; `embedding_collections` has none of
    these. Its optimizer steps its tables however they are sharded."""
    from torchrec.modules.fused_embedding_modules import (
        FusedEmbeddingBagCollection,
        FusedEmbeddingCollection,
    )

    for module in model.modules():
        if isinstance(module, FusedEmbeddingBagCollection):
            yield module, module.embedding_bag_configs()
        elif isinstance(module, FusedEmbeddingCollection):
            yield module, module.embedding_configs()


def with_plain_collections(model: nn.Module) -> nn.Module:
    """A model without weights that has the tables of both kinds in plain collections: what this one
    would be, were no optimizer fused into a collection."""
    import torch
    from torch import nn
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    meta, made = torch.device("meta"), nn.ModuleList()
    plain = ((module, configs) for _, module, configs in embedding_collections(model))
    for module, configs in (*plain, *fused_collections(model)):
        bags = isinstance(module, EmbeddingBagCollection | FusedEmbeddingBagCollection)
        kind: Any = EmbeddingBagCollection if bags else EmbeddingCollection
        made.append(kind(list(configs), device=meta))
    return made
