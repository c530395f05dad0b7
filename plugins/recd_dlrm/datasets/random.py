"""Random rows (DLRM, 4.1): dense floats, ids drawn evenly, a label from a biased coin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa

from recd_dlrm.datasets.flat_columns import id_lists, offsets_of
from recd_plugins.api import Config, Context, Range, RegistryError
from recd_plugins.api.data import SPLITS, Dataset, Schema, SparseFeature, Split

__all__ = ["RandomConfig", "RandomRows", "RowsConfig", "build_random"]

CHUNK_ROWS = 4096
"""Fixed, because a chunk's number seeds it."""


@dataclass(frozen=True, kw_only=True)
class RowsConfig(Config):
    """Everything in a generated row except its ids."""

    samples: Annotated[int, Range(ge=1)] = 20_000
    """The number of rows of the train split."""
    test_samples: Annotated[int, Range(ge=1)] = 2_000
    """The number of rows of the test split."""
    dense: Annotated[int, Range(ge=0, le=100_000)] = 13
    """The number of dense features: dense_0, dense_1, ..."""
    dense_distribution: Literal["uniform", "normal"] = "uniform"
    """The distribution of dense values: even over [0, 1) (`uniform`), or Gaussian with mean 0 and
    deviation 1."""
    positive_rate: Annotated[float, Range(ge=0, le=1)] = 0.5
    """The probability of label 1."""
    seed: Annotated[int, Range(ge=0)] = 0
    """The seed of the rows; `train.seed` does not change it. The same seed yields the same rows."""

    def idle_options(self) -> Mapping[str, str]:
        if self.dense:
            return {}
        why = "it is the distribution of dense values, and `dense: 0` has none"
        return dict.fromkeys(self.set_among("dense_distribution"), why)

    @property
    def dense_names(self) -> tuple[str, ...]:
        return tuple(f"dense_{i}" for i in range(self.dense))

    def num_rows(self, split: Split) -> int:
        return self.samples if split == "train" else self.test_samples

    def chunk_rows(self, split: Split) -> Iterator[tuple[int, np.random.Generator]]:
        """The number of rows of each chunk, and its own stream of random numbers."""
        rows = self.num_rows(split)
        for chunk, start in enumerate(range(0, rows, CHUNK_ROWS)):
            rng = np.random.default_rng((self.seed, SPLITS.index(split), chunk))
            yield min(CHUNK_ROWS, rows - start), rng

    def label_and_dense(self, rows: int, rng: np.random.Generator, label: str) -> dict[str, object]:
        """The columns of a chunk that are not ids, each [B] float32."""
        draw = rng.random if self.dense_distribution == "uniform" else rng.standard_normal
        dense = draw((self.dense, rows), dtype=np.float32)
        labels = (rng.random(rows) < self.positive_rate).astype(np.float32)
        return {label: labels, **dict(zip(self.dense_names, dense, strict=True))}


@dataclass(frozen=True, kw_only=True)
class RandomConfig(RowsConfig):
    """The `random` dataset.

    The profile model of the DLRM paper (5.2) reads 8 tables of a million rows:

        dataset: {use: random, samples: 2_048_000, dense: 512, lookups: 100,
                  num_ids: [1_000_000, 1_000_000, 1_000_000, 1_000_000,
                            1_000_000, 1_000_000, 1_000_000, 1_000_000]}
    """

    num_ids: Annotated[tuple[int, ...], Range(ge=1)] = (10_000,) * 8
    """The number of ids of each sparse feature, cat_0, cat_1, ...; ids are drawn evenly from [0,
    num_ids)."""
    lookups: Annotated[int | tuple[int, ...], Range(ge=1, le=1_000_000)] = 4
    """k, the number of ids per sample: one number for all features, or a list with one for each."""
    fixed_lookups: bool = False
    """Whether each sample has exactly k ids. By default their number is drawn evenly from [1,
    k]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.most_lookups) != len(self.num_ids):
            raise RegistryError(
                f"names {len(self.most_lookups)} features, num_ids {len(self.num_ids)}: "
                "give one number for all, or one per feature.",
                where="lookups",
            )

    def idle_options(self) -> Mapping[str, str]:
        idle = dict(super().idle_options())
        if self.fixed_lookups and all(most == 1 for most in self.most_lookups):
            idle["fixed_lookups"] = "each sample has one id of each feature by `lookups` alone"
        return idle

    @property
    def most_lookups(self) -> tuple[int, ...]:
        """k of each feature."""
        if isinstance(self.lookups, int):
            return (self.lookups,) * len(self.num_ids)
        return self.lookups


class RandomRows(Dataset):
    """Each chunk depends only on (seed, split, chunk), so any part can be made again."""

    def __init__(self, config: RandomConfig) -> None:
        self.config = config

    @cached_property
    def schema(self) -> Schema:
        return Schema(
            session_id=None,
            timestamp=None,
            dense=self.config.dense_names,
            sparse=tuple(
                SparseFeature(name=f"cat_{i}", num_ids=num_ids)
                for i, num_ids in enumerate(self.config.num_ids)
            ),
        )

    def num_rows(self, split: Split) -> int:
        return self.config.num_rows(split)

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        config, schema = self.config, self.schema
        for rows, rng in config.chunk_rows(split):
            columns = config.label_and_dense(rows, rng, schema.label)
            for feature, k in zip(schema.sparse, config.most_lookups, strict=True):
                lengths = np.full(rows, k) if config.fixed_lookups else rng.integers(1, k + 1, rows)
                offsets = offsets_of(lengths)
                ids = rng.integers(feature.num_ids, size=offsets[-1])
                columns[feature.name] = id_lists(ids, offsets)
            yield pa.table(columns, schema=schema.arrow())


def build_random(config: RandomConfig, context: Context) -> RandomRows:
    return RandomRows(config)
