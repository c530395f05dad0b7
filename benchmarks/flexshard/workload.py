"""What is trained on the emulated cluster: sequences of one table, drawn by a law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.access.parametric import uniform, zipf

__all__ = ["TABLE", "Features", "Sequences", "Workload"]

TABLE, FEATURE = "rows", "history"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Lookups of a table: how large, how skewed, how many."""

    num_rows: int
    dim: int
    exponent: float
    """The exponent of the Zipf law of lookups; 0 if all rows are equally likely."""
    batch_size: int
    """Samples per rank."""
    lookups: int
    """Lookups of each sample."""
    hot: tuple[int, float] | None = None
    """Instead of Zipf's law: this many rows take this share of lookups, equally, and the other rows
    share the rest equally."""

    @property
    def rows(self) -> RowDistribution:
        """Hottest first; row i of the distribution is id i of the table, see `ids`."""
        if self.hot is not None:
            rows, share = self.hot
            others = self.num_rows - rows
            each = [share * self.lookups / rows, (1 - share) * self.lookups / others]
            return RowDistribution.of([rows, others], each)
        if self.exponent == 0:
            return uniform(self.num_rows, self.lookups)
        return zipf(self.num_rows, self.lookups, self.exponent)

    @property
    def ids(self) -> Tensor:
        """[num_rows] int64: the id of each row of the distribution; hot ids are anywhere."""
        return torch.randperm(self.num_rows, generator=torch.Generator().manual_seed(1))

    def batches(self, count: int, seed: int) -> list[Features]:
        rows, ids = self.rows, self.ids
        draw = np.random.default_rng(seed)
        # Lookups fall on runs of like rows, and evenly within one.
        chance = rows.counts * rows.p
        starts = np.concatenate([[0], np.cumsum(rows.counts)])[:-1]
        made = []
        for _ in range(count):
            size = self.batch_size * self.lookups
            run = draw.choice(len(chance), size, p=chance / chance.sum())
            hit = starts[run] + (draw.random(size) * rows.counts[run]).astype(np.int64)
            features = KeyedJaggedTensor(
                keys=[FEATURE],
                values=ids[torch.from_numpy(hit)],
                lengths=torch.full((self.batch_size,), self.lookups, dtype=torch.int32),
            )
            made.append(Features(features))
        return made


@dataclass
class Features(Pipelineable):
    """A batch that TorchRec's pipeline takes: its KJT is found by attribute."""

    features: KeyedJaggedTensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Features:
        return Features(self.features.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        self.features.record_stream(stream)

    def pin_memory(self) -> Features:
        return Features(self.features.pin_memory())


class Sequences(nn.Module):
    """A table with almost nothing after it: a step is lookups, exchanges and updates."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.sequences = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=TABLE,
                    embedding_dim=workload.dim,
                    num_embeddings=workload.num_rows,
                    feature_names=[FEATURE],
                )
            ],
            device=torch.device("meta"),
        )

    def forward(self, batch: Features) -> tuple[Tensor, Tensor]:
        loss = self.sequences(batch.features)[FEATURE].values().mean()
        return loss, loss.detach()
