"""A pooled DLRM of 26 tables, its batches, and how often its rows are looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torchrec.datasets.utils import Batch
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.distribution import Floats, Integers
from recd_plugins.planning.access.parametric import zipf
from recd_plugins.planning.access.row_counter import RowCounter

__all__ = ["ALIKE", "CRITEO", "PooledModel"]

DENSE = 13
MOST_ROWS = 100_000
CRITEO = tuple(
    min(rows, MOST_ROWS)
    for rows in (
        1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
        5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
    )
)  # fmt: skip
"""Rows of the 26 tables of Criteo's Kaggle set, the largest cut down."""
ALIKE = (MOST_ROWS,) * 26
"""26 large tables."""


@dataclass(frozen=True, kw_only=True)
class PooledModel:
    """Tables, and what samples look up in them."""

    rows: tuple[int, ...] = CRITEO
    dim: int = 64
    exponent: float
    """Of Zipf's law, for all tables."""
    lookups: int
    """The ids of a bag."""
    batch_size: int
    """Samples per rank."""

    @property
    def tables(self) -> Mapping[str, int]:
        return {f"t{number}": rows for number, rows in enumerate(self.rows)}

    @property
    def features(self) -> list[str]:
        return [f"f{number}" for number in range(len(self.rows))]

    def make(self) -> DLRMTrain:
        """TorchRec's own DLRM, its tables on the meta device and little behind them."""
        bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name, embedding_dim=self.dim, num_embeddings=rows, feature_names=[feature]
                )
                for (name, rows), feature in zip(self.tables.items(), self.features, strict=True)
            ],
            device=torch.device("meta"),
        )
        return DLRMTrain(
            DLRM(
                embedding_bag_collection=bags,
                dense_in_features=DENSE,
                dense_arch_layer_sizes=[self.dim],
                over_arch_layer_sizes=[64, 1],
            )
        )

    def batches(self, count: int, seed: int) -> list[Batch]:
        draw = np.random.default_rng(seed)
        return [self._batch(draw) for _ in range(count)]

    def profile(self, batches: int, seed: int) -> Profile:
        """What so many batches of one rank look up, counted as planners count."""
        draw = np.random.default_rng(seed)
        counters = {name: RowCounter(rows) for name, rows in self.tables.items()}
        for _ in range(batches):
            for name, ids in zip(self.tables, self._ids(draw), strict=True):
                counters[name].add(ids, self.batch_size)
        return Profile(
            rows={name: counter.distribution(sample=True) for name, counter in counters.items()},
            samples=batches * self.batch_size,
        )

    def _batch(self, draw: np.random.Generator) -> Batch:
        ids = np.concatenate(self._ids(draw))
        labels = draw.integers(0, 2, self.batch_size)
        return Batch(
            dense_features=torch.from_numpy(
                draw.standard_normal((self.batch_size, DENSE), dtype=np.float32)
            ),
            sparse_features=KeyedJaggedTensor(
                keys=self.features,
                values=torch.from_numpy(ids),
                lengths=torch.full(
                    (len(self.rows) * self.batch_size,), self.lookups, dtype=torch.int32
                ),
            ),
            labels=torch.from_numpy(labels).float(),
        )

    def _ids(self, draw: np.random.Generator) -> list[Integers]:
        """Each table's, in turn."""
        size = self.batch_size * self.lookups
        found = []
        for chances, names in self._laws:
            hit = np.searchsorted(chances, draw.random(size), side="right")
            found.append(names[np.minimum(hit, len(names) - 1)])
        return found

    @cached_property
    def _laws(self) -> list[tuple[Floats, Integers]]:
        """For each table the chance of its hottest rows together, and these rows' ids."""
        laws = []
        for number, rows in enumerate(self.rows):
            law = zipf(rows, 1.0, self.exponent)
            chance = np.cumsum(np.repeat(law.p, law.counts))
            ids = np.random.default_rng(number).permutation(rows)
            laws.append((chance / chance[-1], ids))
        return laws
