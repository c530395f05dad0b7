"""What is trained over the link: clicks that depend on rows drawn by a law; batches in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from benchmarks.scars.tables import Law
from recd_plugins.data.batch import Batch
from recd_plugins.planning.access.distribution import Integers

__all__ = ["Clicks", "Held", "Model"]


@dataclass(frozen=True, kw_only=True)
class Clicks:
    """Samples that look up rows of each table; their labels are noisy votes of those rows."""

    law: str
    num_rows: int
    """Rows of each table."""
    tables: int
    lookups: int
    """Lookups of a sample in each table."""
    dim: int
    signal: float = 2.0
    """The deviation of a sample's logit: how much its rows decide its label."""
    pooled: bool
    """Whether there are bags, summed by TorchRec, as for Criteo's categories; or else sequences,
    summed by the model."""

    @property
    def names(self) -> list[str]:
        return [f"t{i}" for i in range(self.tables)]

    def hottest(self, share: float) -> Integers:
        """[n]: the hottest rows of each table that together take `share` of its lookups."""
        rows = Law(self.law, self.num_rows, 1).rows["table"]
        count = int(np.searchsorted(rows.coverage(np.arange(self.num_rows)), share))
        return self._ids()[:count].numpy()

    def to_learn(self) -> float:
        """How far the loss without any knowledge is above the loss with known votes."""
        (batch,) = self.batches(1, 1 << 16, rank=0)
        logits = batch.dense.squeeze(1)
        entropy = nn.functional.binary_cross_entropy_with_logits(logits, logits.sigmoid())
        return math.log(2) - float(entropy)

    def batches(self, count: int, batch_size: int, rank: int) -> Iterator[Batch]:
        """The batches of a rank, one by one."""
        law, ids = Law(self.law, self.num_rows, self.lookups), self._ids()
        votes = torch.randn(self.tables, self.num_rows, generator=_seeded(2))
        votes /= (self.tables * self.lookups) ** 0.5
        for number in range(count):
            seed = (rank << 20) + number
            looked_up = [
                ids[law.draw(batch_size, seed * self.tables + table)["table"]]
                for table in range(self.tables)
            ]
            voted = [
                votes[table][each].view(batch_size, -1).sum(1)
                for table, each in enumerate(looked_up)
            ]
            logits = self.signal * torch.stack(voted).sum(0)
            chance = torch.rand(batch_size, generator=_seeded(seed))
            yield Batch(
                dense=logits[:, None],
                features=KeyedJaggedTensor(
                    keys=self.names,
                    values=torch.cat(looked_up),
                    lengths=torch.full(
                        (self.tables * batch_size,), self.lookups, dtype=torch.int32
                    ),
                ),
                labels=(chance < logits.sigmoid()).float(),
                weights=torch.ones(batch_size),
            )

    def _ids(self) -> Tensor:
        """[num_rows]: the id of each row of the law; hot ids are anywhere."""
        return torch.randperm(self.num_rows, generator=_seeded(1))


class Model(nn.Module):
    """A logistic regression on summed embeddings: a step is lookups, exchanges and updates.

    It reports how far its loss is above that of the logits from which labels are drawn: what is
    left to learn, without the noise of labels. These logits are in `dense`, which it uses for
    nothing else.
    """

    def __init__(self, clicks: Clicks) -> None:
        super().__init__()
        tables = [
            {
                "name": name,
                "embedding_dim": clicks.dim,
                "num_embeddings": clicks.num_rows,
                "feature_names": [name],
            }
            for name in clicks.names
        ]
        meta = torch.device("meta")
        self.embeddings = (
            EmbeddingBagCollection(
                tables=[EmbeddingBagConfig(**one) for one in tables], device=meta
            )
            if clicks.pooled
            else EmbeddingCollection(tables=[EmbeddingConfig(**one) for one in tables], device=meta)
        )
        self.sums = None if clicks.pooled else ClickSums(clicks.names)
        self.over = nn.Linear(clicks.tables * clicks.dim, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        found = self.embeddings(batch.features)
        summed = found.values() if self.sums is None else self.sums(found)
        logits = self.over(summed).squeeze(1)
        loss, least = (
            nn.functional.binary_cross_entropy_with_logits(each, batch.labels)
            for each in (logits, batch.dense.squeeze(1))
        )
        return loss, loss.detach() - least


class ClickSums(nn.Module):
    """The sums of sequences of one length; a module, so that TorchRec's tracer does not look
    inside."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def forward(self, found: dict[str, JaggedTensor]) -> Tensor:
        summed = []
        for name in self._names:
            one = found[name]
            values = one.values()
            summed.append(values.view(len(one.lengths()), -1, values.shape[1]).sum(1))
        return torch.cat(summed, dim=1)


class Held:
    """A loader of a fixed number of batches, which are made together with it."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = list(batches)
        self._next = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in islice(self._batches, self._next, None):
            self._next += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
