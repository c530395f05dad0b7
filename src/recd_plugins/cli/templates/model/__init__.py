"""A model: logistic regression on dense features and embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from recd_plugins.api import Config, Context, ModelRecord, Range, hookimpl
from recd_plugins.api.batch import Batch
from recd_plugins.api.data import Schema


@dataclass(frozen=True, kw_only=True)
class NewPluginConfig(Config):
    """The options of new_plugin."""

    embedding_dim: Annotated[int, Range(ge=4)] = 16
    """The numbers in a row of every table (D)."""


class NewPlugin(nn.Module):
    """logit = w . [dense, the summed embeddings of each feature] + b."""

    def __init__(self, schema: Schema, dim: int) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=f"t_{name}",  # for torch takes no module named `items` or `keys`
                embedding_dim=dim,
                num_embeddings=size,
                feature_names=[each.name for each in schema.sparse if each.table_name == name],
            )
            for name, size in schema.table_sizes().items()
        ]
        # On the meta device: the plan decides on which ranks a table's rows are made.
        self.tables = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        self.keys = list(schema.sparse_names)
        self.over = nn.Linear(len(schema.dense) + dim * len(self.keys), 1)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """The loss, and (loss, logits, labels, weights), detached, for the metrics."""
        summed = self.tables(batch.features)
        inputs = [batch.dense, *(summed[key] for key in self.keys)]
        logits = self.over(torch.cat(inputs, dim=1)).squeeze(1)
        losses = nn.functional.binary_cross_entropy_with_logits(
            logits, batch.labels, batch.weights, reduction="sum"
        )
        loss = losses / batch.weights.sum().clamp(min=1)
        return loss, (loss.detach(), logits.detach(), batch.labels, batch.weights)


def build(config: NewPluginConfig, context: Context) -> NewPlugin:
    return NewPlugin(context.require_schema(), config.embedding_dim)


@hookimpl
def recd_model() -> list[ModelRecord[NewPluginConfig]]:
    return [
        ModelRecord(
            name="new_plugin",
            summary="A linear model.",
            config=NewPluginConfig,
            build=build,
        )
    ]
