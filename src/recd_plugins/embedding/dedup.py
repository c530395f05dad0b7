"""TorchRec's collections, looked up with unique samples: same tables, same parameter names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.embedding.output import Samples, pooled, sequences
from recd_plugins.embedding.parts import Part, Route, bag_parts, whole
from recd_plugins.embedding.rows import rows_of
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.groups import Groups

__all__ = ["DedupEmbeddingBagCollection", "DedupEmbeddingCollection", "deduplicated"]


class DedupEmbeddingCollection(EmbeddingCollection):
    """An EmbeddingCollection that takes `SparseFeatures` too, or as before a KJT.

    Of deduplicated features, values and lengths come as `Unexpanded`.
    """

    parts: tuple[Part, ...]
    key_of: Mapping[str, str]
    """Embedding name to feature."""
    unique_shares: Mapping[str, float]
    """Feature to its unique samples over the samples of a batch, as expected: for planners."""
    route: Route

    def forward(self, features: SparseFeatures | KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Whole tables, as they are before sharding."""
        (part,) = self.parts
        embedded = super().forward(rows_of(features, part.keys))
        return sequences(embedded, self.key_of, Samples(features, sequences=True))


class DedupEmbeddingBagCollection(EmbeddingBagCollection):
    """An EmbeddingBagCollection that takes `SparseFeatures` too, or as before a KJT.

    Of deduplicated features, the KeyedTensor holds `Unexpanded` tensors, by key.
    """

    parts: tuple[Part, ...]
    key_of: Mapping[str, str]
    """Embedding name to feature."""
    unique_shares: Mapping[str, float]
    """Feature to its unique samples over the samples of a batch, as expected: for planners."""
    route: Route

    def forward(self, features: SparseFeatures | KeyedJaggedTensor) -> KeyedTensor:
        """Whole tables, as they are before sharding."""
        keys = [key for part in self.parts for key in part.keys]
        summed = super().forward(rows_of(features, list(dict.fromkeys(keys))))
        return pooled(summed.to_dict(), self.key_of, Samples(features))


def deduplicated(
    module: EmbeddingCollection | EmbeddingBagCollection,
    groups: Groups,
    unique_shares: Sequence[float] | None = None,
    route: Route = "padded",
) -> DedupEmbeddingCollection | DedupEmbeddingBagCollection:
    """The module itself, from now on one that takes unique samples of `groups`.

    Its class changes and nothing else: parameters, hooks and whoever holds it stay.
    """
    if isinstance(module, EmbeddingBagCollection):
        tables: Sequence[BaseEmbeddingConfig] = module.embedding_bag_configs()
        module.__class__ = DedupEmbeddingBagCollection
        vbe = route == "vbe"
        module.parts = (whole(tables, groups),) if vbe else bag_parts(tables, groups, unique_shares)
    else:
        tables = module.embedding_configs()
        module.__class__ = DedupEmbeddingCollection
        module.parts = (whole(tables, groups),)
    made: DedupEmbeddingCollection | DedupEmbeddingBagCollection = module
    made.route = route
    made.unique_shares = {
        key: share
        for group, share in zip(groups, unique_shares or (), strict=bool(unique_shares))
        for key in group
    }
    made.key_of = {
        name: key
        for table, names in zip(tables, get_embedding_names_by_table(tables), strict=True)
        for key, name in zip(table.feature_names, names, strict=True)
    }
    return made
