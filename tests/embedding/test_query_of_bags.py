"""Rung 3 (two gloo ranks): an item's embedding, which nobody has waited for yet, weighs a history
that samples share; held to plain training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_dlrm.poolings.attention import Attention, AttentionConfig
from recd_plugins.data.batch import Batch
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity

DIM, ROWS, SAMPLES = 8, 11, 6


class Model(nn.Module):
    """logit = w . [history, weighed by the item] + b; only the pooling reads the item."""

    def __init__(self) -> None:
        super().__init__()
        meta = torch.device("meta")
        shape = {"embedding_dim": DIM, "num_embeddings": ROWS}
        item = EmbeddingBagConfig(name="t_item", feature_names=["item"], **shape)
        seen = EmbeddingConfig(name="t_seen", feature_names=["history"], **shape)
        self.bags = EmbeddingBagCollection(tables=[item], device=meta)
        self.sequences = EmbeddingCollection(tables=[seen], device=meta)
        self.attention = Attention(DIM, AttentionConfig(hidden=(4,)))
        self.over = nn.Linear(DIM, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        history = self.sequences(batch.features)["history"]
        item = self.bags(batch.features)["item"]
        pooled = self.attention(history.values(), history.lengths(), item)
        logits = self.over(pooled).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, (loss.detach(), logits.detach())


def batch_of(step: int, rank: int) -> Batch:
    """Three samples share a history. In the first step one rank has histories without an id, and
    does not try the pooling there."""
    draw = torch.Generator().manual_seed(2 * step + rank)
    ids = torch.randint(0, ROWS, (2, 4), generator=draw)[:, : 0 if step == rank == 0 else 4]
    histories = ids.repeat_interleave(SAMPLES // 2, 0)
    items = torch.randint(0, ROWS, (SAMPLES,), generator=draw)
    return Batch(
        dense=torch.empty(SAMPLES, 0),
        features=KeyedJaggedTensor(
            keys=["history", "item"],
            values=torch.cat([histories.flatten(), items]),
            lengths=torch.tensor([histories.shape[1]] * SAMPLES + [1] * SAMPLES),
        ),
        labels=torch.randint(0, 2, (SAMPLES,), generator=draw).float(),
        weights=torch.ones(SAMPLES),
    )


def test_the_item_s_table_trains_in_every_step(gloo_pool: GlooPool) -> None:
    check_parity(
        gloo_pool,
        Model,
        [[batch_of(step, rank) for rank in range(2)] for step in range(3)],
        arrange={
            "plugins": ["recd_dedup"],
            "dedup": {"use": "exact", "groups": [["history"]]},
            "sharding": {"use": "torchrec", "search": "greedy"},
        },
        tables=["sgd"],
    )
