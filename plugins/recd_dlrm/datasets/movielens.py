"""MovieLens ratings as sessions: what will a user like, given what they saw before?

A session is a band of one user's ratings, without a gap of `session_gap_minutes`. Test rows are the
latest. Ratings are kept as compact columns; histories are made chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa

from recd_dlrm.datasets.flat_columns import (
    F64,
    I64,
    History,
    band_begins,
    band_starts,
    single_ids,
    windows,
)
from recd_dlrm.datasets.sources import TOKENS, check_sources, empty_split, fingerprint, read_tsv
from recd_plugins.api import Config, Context, Range
from recd_plugins.api.data import Dataset, Schema, SparseFeature, Split

__all__ = ["MovieLens", "MovieLensConfig", "build_movielens"]

WHAT = "a MovieLens .inter file (RecBole's format)"
COLUMNS = {
    "user_id:token": TOKENS,
    "item_id:token": TOKENS,
    "rating:float": pa.float64(),
    "timestamp:float": pa.float64(),
}
CHUNK_ROWS = 16_384


@dataclass(frozen=True, kw_only=True)
class MovieLensConfig(Config):
    """The `movielens` dataset."""

    path: Path
    """The file of ratings, such as ml-100k.inter: user_id, item_id, rating, timestamp (in
    seconds)."""
    threshold: float = 4.0
    """The lowest rating that has label 1."""
    session_gap_minutes: Annotated[float, Range(gt=0)] = 30.0
    """The pause of a user, in minutes, after which a new session begins."""
    history: History = "frozen"
    """The items of a history: those rated before the session (`frozen`), or before the sample
    (`growing`)."""
    history_length: Annotated[int, Range(ge=1)] = 20
    """The number of items that a history keeps, the most recent ones."""
    test_fraction: Annotated[float, Range(gt=0, lt=1)] = 0.1
    """The share of ratings that form the test split: the latest ones."""


class _Ratings(NamedTuple):
    """N ratings, sorted by user, time and line; and their order in time."""

    num_users: int
    num_items: int
    users: I64
    items: I64
    ratings: F64
    timestamps: I64
    """In ms."""
    sessions: I64
    """A running number."""
    user_starts: I64
    """The row of the user's first rating."""
    session_starts: I64
    """The row of the session's first rating."""
    in_time: I64
    """Rows from the earliest to the latest."""


class MovieLens(Dataset):
    def __init__(self, config: MovieLensConfig) -> None:
        check_sources("dataset.path", config.path)
        self.config = config

    @cached_property
    def schema(self) -> Schema:
        table = self._ratings
        return Schema(
            dense=("log_position",),
            sparse=(
                SparseFeature(name="user", num_ids=table.num_users, kind="user"),
                SparseFeature(
                    name="history",
                    num_ids=table.num_items,
                    kind="user",
                    table="items",
                    sequence=True,
                ),
                SparseFeature(name="item", num_ids=table.num_items, kind="item", table="items"),
            ),
        )

    def num_rows(self, split: Split) -> int:
        return self._rows(split).size

    def fingerprint(self) -> str:
        return fingerprint([self.config.path])

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        """`log_position` is log(1 + the number of the user's earlier ratings)."""
        table, config = self._ratings, self.config
        in_split = self._rows(split)
        for begin in range(0, in_split.size, CHUNK_ROWS):
            rows = in_split[begin : begin + CHUNK_ROWS]
            starts = table.user_starts[rows]
            until = table.session_starts[rows] if config.history == "frozen" else rows
            columns = {
                "session_id": table.sessions[rows],
                "timestamp": table.timestamps[rows],
                "label": (table.ratings[rows] >= config.threshold).astype(np.float32),
                "log_position": np.log1p(rows - starts).astype(np.float32),
                "user": single_ids(table.users[rows]),
                "history": windows(table.items, starts, until, config.history_length),
                "item": single_ids(table.items[rows]),
            }
            yield pa.table(columns, schema=self.schema.arrow())

    def _rows(self, split: Split) -> I64:
        in_time = self._ratings.in_time
        cut = in_time.size - round(in_time.size * self.config.test_fraction)
        rows = in_time[:cut] if split == "train" else in_time[cut:]
        if not rows.size:
            raise empty_split(split, self.config.path)
        return rows

    @cached_property
    def _ratings(self) -> _Ratings:
        user, item, rating, time = read_tsv(self.config.path, WHAT, COLUMNS).values()
        users, seconds = user.indices.to_numpy().astype(np.int64), time.to_numpy()
        by_user = np.lexsort((seconds, users))  # stable: equal times stay in the file's order
        users, seconds = users[by_user], seconds[by_user]
        timestamps = np.rint(seconds * 1000).astype(np.int64)
        pauses = np.diff(timestamps, prepend=timestamps[0])
        paused = pauses > self.config.session_gap_minutes * 60_000
        sessions = (paused | band_begins(users)).cumsum() - 1
        return _Ratings(
            num_users=len(user.dictionary),
            num_items=len(item.dictionary),
            users=users,
            items=item.indices.to_numpy().astype(np.int64)[by_user],
            ratings=rating.to_numpy()[by_user],
            timestamps=timestamps,
            sessions=sessions,
            user_starts=band_starts(users),
            session_starts=band_starts(sessions),
            in_time=np.argsort(timestamps, kind="stable"),
        )


def build_movielens(config: MovieLensConfig, context: Context) -> MovieLens:
    return MovieLens(config)
