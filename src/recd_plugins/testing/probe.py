"""The smallest model with both of TorchRec's kinds of tables, for trying shardings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema, SparseFeature

__all__ = ["SCHEMA", "Probe"]

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("age", "price"),
    sparse=(
        SparseFeature(name="item", num_ids=30),
        SparseFeature(name="seen", num_ids=30, table="item", kind="user"),
        SparseFeature(name="shop", num_ids=7),
        SparseFeature(name="history", num_ids=40, kind="user", sequence=True),
    ),
)
"""Two features that share a table, one with a table of its own, one sequence."""


class Probe(nn.Module):
    """A small model for trying plugins: logit = w * [dense, sums of each feature's embeddings] + b.

    Sequences are looked up in an EmbeddingCollection, the other features in an
    EmbeddingBagCollection; tables are on the meta device.
    """

    schema = SCHEMA
    """The schema of its batches, by default."""

    def __init__(self, schema: Schema = SCHEMA, dim: int = 8) -> None:
        super().__init__()
        meta = torch.device("meta")
        bags = [feature for feature in schema.sparse if not feature.sequence]
        sequences = [feature for feature in schema.sparse if feature.sequence]
        self.bags = EmbeddingBagCollection(
            tables=[EmbeddingBagConfig(**table) for table in _tables(bags, dim)], device=meta
        )
        self.sequences = EmbeddingCollection(
            tables=[EmbeddingConfig(**table) for table in _tables(sequences, dim)], device=meta
        )
        self.bag_keys = [feature.name for feature in bags]
        self.sequence_keys = [feature.name for feature in sequences]
        self.over = nn.Linear(len(schema.dense) + dim * len(schema.sparse), 1)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """The output that the `model` slot requires; the loss is the samples' weighted mean."""
        # By key: a sharded collection yields its features in its own order. And one key at a time:
        # TorchRec's pipeline traces this, and a tracer cannot iterate over what the module yields.
        summed, embedded = self.bags(batch.features), self.sequences(batch.features)
        inputs = [batch.dense, *(summed[key] for key in self.bag_keys)]
        for key in self.sequence_keys:
            jagged = embedded[key]
            inputs.append(torch.segment_reduce(jagged.values(), "sum", lengths=jagged.lengths()))
        logits = self.over(torch.cat(inputs, dim=1)).squeeze(1)
        losses = nn.functional.binary_cross_entropy_with_logits(
            logits, batch.labels, batch.weights, reduction="sum"
        )
        loss = losses / batch.weights.sum().clamp(min=1)
        return loss, (loss.detach(), logits.detach(), batch.labels, batch.weights)


def _tables(features: list[SparseFeature], dim: int) -> list[dict[str, object]]:
    by_name: dict[str, list[SparseFeature]] = {}
    for feature in features:
        by_name.setdefault(feature.table_name, []).append(feature)
    return [
        {
            "name": name,
            "embedding_dim": dim,
            "num_embeddings": max(feature.num_ids for feature in group),
            "feature_names": [feature.name for feature in group],
        }
        for name, group in by_name.items()
    ]
