"""Yoochoose clicks: which item is clicked next in an anonymous session?

Each click after a session's first `context` ones is a sample with label 1. With it come `negatives`
samples with label 0: the same session and history, and another item drawn evenly. Popularity alone
separates most of them, so an AUC can be compared only with others on this task.
Test sessions start after every train session has started. Clicks are kept as compact columns;
histories and negatives are made chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa

from recd_dlrm.datasets.draws import salt, streams, uniforms
from recd_dlrm.datasets.flat_columns import I64, History, band_starts, single_ids, windows
from recd_dlrm.datasets.sources import check_sources, empty_split, fingerprint, read_tsv
from recd_plugins.api import Config, Context, DataError, Range
from recd_plugins.api.data import Dataset, Schema, SparseFeature, Split

__all__ = ["Yoochoose", "YoochooseConfig", "build_yoochoose"]

WHAT = "a Yoochoose clicks file (SessionId, ItemId, Time)"
COLUMNS = {
    "SessionId": pa.int64(),
    "ItemId": pa.dictionary(pa.int32(), pa.int64()),
    "Time": pa.float64(),
}
CHUNK_ROWS = 16_384


@dataclass(frozen=True, kw_only=True)
class YoochooseConfig(Config):
    """The `yoochoose` dataset."""

    path: Path
    """The file of clicks, separated by tabs: SessionId, ItemId, Time (in seconds)."""
    history: History = "frozen"
    """The clicks of a history: the session's first `context` ones (`frozen`), or all before the
    sample (`growing`)."""
    context: Annotated[int, Range(ge=1)] = 2
    """The number of clicks that begin a session: they are history, and never samples."""
    history_length: Annotated[int, Range(ge=1)] = 20
    """The number of clicks that a history keeps, the most recent ones."""
    negatives: Annotated[int, Range(ge=1)] = 3
    """The number of samples with label 0 beside each click."""
    test_fraction: Annotated[float, Range(gt=0, lt=1)] = 0.1
    """About the share of clicks that form the test split. Sessions stay whole, and the latest are
    taken."""
    seed: Annotated[int, Range(ge=0)] = 0
    """The seed of the negatives: the same seed draws the same ones."""


class _Clicks(NamedTuple):
    """N clicks, sorted by session, time and line."""

    num_items: int
    sessions: I64
    items: I64
    timestamps: I64
    """In ms."""
    session_starts: I64
    """The row of the session's first click."""
    in_time: I64
    """The rows that are samples, from the earliest to the latest."""


class Yoochoose(Dataset):
    def __init__(self, config: YoochooseConfig) -> None:
        check_sources("dataset.path", config.path)
        self.config = config

    @cached_property
    def schema(self) -> Schema:
        num_ids = self._clicks.num_items
        return Schema(
            dense=("log_position",),
            sparse=(
                SparseFeature(
                    name="history", num_ids=num_ids, kind="user", table="items", sequence=True
                ),
                SparseFeature(name="item", num_ids=num_ids, kind="item", table="items"),
            ),
        )

    def num_rows(self, split: Split) -> int:
        return self._rows(split).size * (1 + self.config.negatives)

    def fingerprint(self) -> str:
        return fingerprint([self.config.path])

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        """`log_position` is log(1 + the number of the session's earlier clicks)."""
        clicks, config = self._clicks, self.config
        in_split = self._rows(split)
        chunk = max(1, CHUNK_ROWS // (1 + config.negatives))
        for begin in range(0, in_split.size, chunk):
            rows = in_split[begin : begin + chunk].repeat(1 + config.negatives)
            starts = clicks.session_starts[rows]
            until = np.minimum(starts + config.context, rows)
            draw = np.arange(rows.size) % (1 + config.negatives)
            columns = {
                "session_id": clicks.sessions[rows],
                "timestamp": clicks.timestamps[rows],
                "label": (draw == 0).astype(np.float32),
                "log_position": np.log1p(rows - starts).astype(np.float32),
                "history": windows(
                    clicks.items,
                    starts,
                    until if config.history == "frozen" else rows,
                    config.history_length,
                ),
                "item": single_ids(self._items(rows, draw)),
            }
            yield pa.table(columns, schema=self.schema.arrow())

    def _items(self, rows: I64, draw: I64) -> I64:
        """The clicked item at draw 0; otherwise one of the other items, all equally likely."""
        clicked = self._clicks.items[rows]
        even = uniforms(streams(salt(self.config.seed, "negatives"), rows), draw)
        other = (even * (self._clicks.num_items - 1)).astype(np.int64)
        other += other >= clicked
        return np.where(draw == 0, clicked, other)

    def _rows(self, split: Split) -> I64:
        clicks = self._clicks
        begun = clicks.timestamps[clicks.session_starts[clicks.in_time]]
        cut = np.quantile(begun, 1 - self.config.test_fraction)
        rows = clicks.in_time[begun <= cut if split == "train" else begun > cut]
        if not rows.size:
            raise empty_split(split, self.config.path)
        return rows

    @cached_property
    def _clicks(self) -> _Clicks:
        session, item, time = read_tsv(self.config.path, WHAT, COLUMNS).values()
        if len(item.dictionary) < 2:
            raise DataError(
                f"{self.config.path}: holds one item only, so there is none to draw as a "
                f"negative. Give {WHAT} with more."
            )
        sessions, seconds = session.to_numpy(), time.to_numpy()
        by_session = np.lexsort((seconds, sessions))  # stable: equal times in the file's order
        sessions = sessions[by_session]
        timestamps = np.rint(seconds[by_session] * 1000).astype(np.int64)
        session_starts = band_starts(sessions)
        in_time = np.argsort(timestamps, kind="stable")
        samples = in_time[in_time - session_starts[in_time] >= self.config.context]
        if not samples.size:
            raise DataError(
                f"{self.config.path}: no session has more than {self.config.context} clicks, so "
                "none is a sample. Lower `context`."
            )
        return _Clicks(
            num_items=len(item.dictionary),
            sessions=sessions,
            items=item.indices.to_numpy().astype(np.int64)[by_session],
            timestamps=timestamps,
            session_starts=session_starts,
            in_time=samples,
        )


def build_yoochoose(config: YoochooseConfig, context: Context) -> Yoochoose:
    return Yoochoose(config)
