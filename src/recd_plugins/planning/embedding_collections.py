"""The embedding collections of a model, with the configs of their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torchrec.modules.embedding_configs import BaseEmbeddingConfig

__all__ = ["embedding_collections", "has_sequences"]


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
