"""A user's model, made to train on unique samples: its collections, its poolings and its root."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingBagCollectionInterface,
    EmbeddingCollection,
    EmbeddingCollectionInterface,
)

from recd_plugins.embedding.dedup import (
    DedupEmbeddingBagCollection,
    DedupEmbeddingCollection,
    deduplicated,
)
from recd_plugins.embedding.view import seeing_all_features
from recd_plugins.errors import CapabilityError
from recd_plugins.sparse.groups import Groups

__all__ = ["adapt"]


def adapt(
    model: nn.Module,
    groups: Groups,
    *,
    poolings: Sequence[str] = (),
    unique_shares: Sequence[float] | None = None,
    pool_unique: bool = True,
) -> nn.Module:
    """Make `model` take batches whose features of `groups` are deduplicated; itself, changed.

    Its EmbeddingCollections and EmbeddingBagCollections look up unique samples. Names of
    parameters and states stay, and a batch without `dedup` still works.
    `unique_shares` are each group's unique samples over the samples of a batch, as expected.
    """
    for path, module in model.named_modules():
        if type(module) in (EmbeddingCollection, EmbeddingBagCollection):
            deduplicated(module, groups, unique_shares)
        elif isinstance(
            module, EmbeddingBagCollectionInterface | EmbeddingCollectionInterface
        ) and not isinstance(module, DedupEmbeddingCollection | DedupEmbeddingBagCollection):
            raise CapabilityError(
                f"dedup: module {path!r} is a {type(module).__name__}, which is not adapted to "
                "unique samples: only TorchRec's EmbeddingCollection and EmbeddingBagCollection "
                "are. Use one of these, or take `dedup` out of registry.yaml."
            )
    seeing_all_features(model)
    return model
