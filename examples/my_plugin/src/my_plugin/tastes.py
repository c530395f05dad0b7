"""Users who like one genre at a time; the label says whether the next item is of that genre."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pyarrow as pa

from recd_plugins.api import Config, Context, Range
from recd_plugins.api.data import SPLITS, Dataset, Schema, SparseFeature, Split

ROWS_PER_CHUNK = 10_000


@dataclass(frozen=True, kw_only=True)
class TastesConfig(Config):
    """How many users, items and genres there are, and how fast tastes drift."""

    samples: Annotated[int, Range(ge=10)] = 20_000
    """The number of rows of the train split; the test split has a tenth of them."""
    genres: Annotated[int, Range(ge=2)] = 5
    """The number of genres; item i is of genre i mod `genres`."""
    items_per_genre: Annotated[int, Range(ge=1)] = 20
    """The number of items of each genre."""
    history: Annotated[int, Range(ge=1)] = 8
    """The number of clicks before the sample, the latest last."""
    drift: Annotated[float, Range(ge=0, le=1)] = 0.2
    """The probability that the liked genre changes from one click to the next."""
    seed: Annotated[int, Range(ge=0)] = 0
    """The seed of the rows: the same seed yields the same rows."""


class Tastes(Dataset):
    """Half of the samples are items of the genre liked now (label 1), half of another (0)."""

    def __init__(self, config: TastesConfig) -> None:
        self.config = config

    @property
    def schema(self) -> Schema:
        items = self.config.genres * self.config.items_per_genre
        return Schema(
            session_id=None,
            timestamp=None,
            sparse=(
                SparseFeature(name="item", num_ids=items),
                SparseFeature(
                    name="history", num_ids=items, kind="user", table="item", sequence=True
                ),
            ),
        )

    def num_rows(self, split: Split) -> int:
        return self.config.samples if split == "train" else self.config.samples // 10

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        for start in range(0, self.num_rows(split), ROWS_PER_CHUNK):
            rows = min(ROWS_PER_CHUNK, self.num_rows(split) - start)
            draw = np.random.default_rng([self.config.seed, SPLITS.index(split), start])
            yield self._draw(rows, draw)

    def _draw(self, rows: int, draw: np.random.Generator) -> pa.Table:
        genres, length = self.config.genres, self.config.history
        moves = draw.integers(1, genres, (rows, length))
        moves *= draw.random((rows, length)) < self.config.drift
        liked = (draw.integers(0, genres, (rows, 1)) + moves.cumsum(1)) % genres
        label = draw.integers(0, 2, rows)
        other = draw.integers(1, genres, rows)
        shown = (liked[:, -1:] + np.where(label == 1, 0, other)[:, None]) % genres
        return pa.table(
            {
                "label": label.astype(np.float32),
                "item": self._items(shown, draw),
                "history": self._items(liked, draw),
            }
        )

    def _items(self, genres: np.ndarray, draw: np.random.Generator) -> pa.ListArray:
        """An item of each genre, as a list for each row."""
        ids = genres + self.config.genres * draw.integers(
            0, self.config.items_per_genre, genres.shape
        )
        offsets = np.arange(0, ids.size + 1, genres.shape[1], dtype=np.int32)
        return pa.ListArray.from_arrays(offsets, ids.ravel())


def build_tastes(config: TastesConfig, context: Context) -> Tastes:
    return Tastes(config)
