"""Embedding tables, one for each table of the schema, on the meta device.

TorchRec names a module after each table, so the module of table `item` is `t_item`: bare,
a table called `items` or `values` would collide with the methods of `nn.ModuleDict`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from recd_plugins.api import RegistryError
from recd_plugins.api.data import Schema, SparseFeature

if TYPE_CHECKING:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

__all__ = ["bag_tables", "sequence_tables"]

META = torch.device("meta")
"""Tables made on CPU would stay in memory beside the sharded ones."""


def bag_tables(
    schema: Schema, features: Iterable[SparseFeature], dim: int
) -> EmbeddingBagCollection:
    """Tables whose embeddings come summed per sample: [B, D] a feature."""
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    tables = [EmbeddingBagConfig(**table) for table in _tables(schema, features, dim)]
    return EmbeddingBagCollection(tables=tables, device=META)


def sequence_tables(
    schema: Schema, features: Iterable[SparseFeature], dim: int
) -> EmbeddingCollection:
    """Tables whose embeddings come one by one: jagged [N, D] a feature."""
    from torchrec.modules.embedding_configs import EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingCollection

    tables = [EmbeddingConfig(**table) for table in _tables(schema, features, dim)]
    return EmbeddingCollection(tables=tables, device=META)


def _tables(schema: Schema, features: Iterable[SparseFeature], dim: int) -> list[dict[str, object]]:
    """The arguments of each table's config; features that share a table share its config."""
    by_table: dict[str, list[str]] = {}
    for feature in features:
        by_table.setdefault(feature.table_name, []).append(feature.name)
    if dotted := [name for name in by_table if "." in name]:
        raise RegistryError(
            f"table {dotted[0]!r} cannot have a dot in its name: PyTorch names a module after "
            "it. Set `table` of its features in the schema."
        )
    sizes = schema.table_sizes()
    return [
        {
            "name": f"t_{name}",
            "num_embeddings": sizes[name],
            "embedding_dim": dim,
            "feature_names": names,
        }
        for name, names in by_table.items()
    ]
