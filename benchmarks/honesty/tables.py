"""Tables for which the true lookups are known: generated ones, or real ones whose rest was not
counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.data.reader.order import rows_of_spans
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.planning.access.access_profile import Counted
from recd_plugins.planning.access.distribution import Integers
from recd_plugins.stack import Stack, load

__all__ = ["Generated", "HonestyTable", "Real", "generated_tables", "real_tables"]

RANKS = 2
SEGMENTS = 100
"""The number of stretches of a drifting table; between two of them rows change places."""


@dataclass(frozen=True, kw_only=True)
class HonestyTable(ABC):
    """A table of which a part is counted, and the rest tests the forecast."""

    name: str
    shuffled: bool = True
    """Whether batches are drawn from all over the table; else they come in the order of time."""
    batch_size: int = 256

    @property
    @abstractmethod
    def drifts(self) -> bool:
        """Whether the popularity of its rows changes from early to late."""

    @abstractmethod
    def dataset(self, folder: Path) -> Mapping[str, Any]:
        """The dataset of its registry, made in `folder` if need be."""

    def registry(self, folder: Path) -> dict[str, Any]:
        return {
            "plugins": ["recd_dlrm"],
            "folder": str(folder / f"{self.name}.prepared"),
            "dataset": self.dataset(folder),
            "reader": {"use": "local", "shuffle": self.shuffled},
            "train": {"ranks": RANKS, "batch_size": self.batch_size, "steps": 1},
        }

    def counted(self, stack: Stack) -> Mapping[str, Counted]:
        """The tables of its embedding, by name."""
        schema = stack.schema
        return {
            table: Counted(
                num_rows=rows,
                features=tuple(one.name for one in schema.sparse if one.table_name == table),
            )
            for table, rows in schema.table_sizes().items()
        }

    def lookups(self, stack: Stack, counted: Counted) -> Integers:
        """[num_rows] how often each row is looked up in all of the train split."""
        found = np.zeros(counted.num_rows, np.int64)
        for file in stack.prepare().train.files:
            columns = pq.read_table(file, columns=list(counted.features))
            for feature in counted.features:
                for chunk in columns[feature].chunks:
                    ids = chunk.flatten().to_numpy()
                    found += np.bincount(ids, minlength=counted.num_rows)
        return found

    def stack(self, folder: Path) -> Stack:
        return load(self.registry(folder))


@dataclass(frozen=True, kw_only=True)
class Generated(HonestyTable):
    """Sessions of S samples: a history that each of its samples repeats, an item that is new.

    Rows are drawn by Zipf's law. Where they drift, `swapped` of them change places between two of
    `SEGMENTS` stretches of time.
    """

    exponent: float
    samples_per_session: float
    swapped: float = 0.0
    samples: int = 120_000
    rows: int = 50_000
    history: int = 6
    """The mean number of ids of a history."""
    rows_per_stripe: int = 2048
    seed: int = 0

    @property
    def drifts(self) -> bool:
        return self.swapped > 0

    def dataset(self, folder: Path) -> Mapping[str, Any]:
        path = folder / self.name
        if not path.exists():
            schema = Schema(
                sparse=(
                    SparseFeature(
                        name="history",
                        num_ids=self.rows,
                        table="items",
                        kind="user",
                        sequence=True,
                    ),
                    SparseFeature(name="item", num_ids=self.rows, table="items"),
                )
            )
            with TableWriter(path, schema, rows_per_stripe=self.rows_per_stripe) as writer:
                for chunk in self._chunks():
                    writer.write(chunk)
        return {"use": "parquet", "train": str(path), "test": str(path)}

    def _chunks(self) -> Iterator[pa.Table]:
        draw = np.random.default_rng([self.seed, round(100 * self.exponent)])
        popularity = np.cumsum(np.arange(1.0, self.rows + 1) ** -self.exponent)
        row_of = draw.permutation(self.rows)
        sessions = max(1, round(self.samples / self.samples_per_session))
        of_sample = np.concatenate(
            [np.arange(sessions), draw.integers(sessions, size=self.samples - sessions)]
        )
        # A session lasts a hundredth of the table at most: its samples lie among those of others.
        times = draw.random(sessions)[of_sample] + draw.random(self.samples) / SEGMENTS
        order = np.argsort(times)
        of_sample, times = of_sample[order], times[order]
        begin, size = np.full(sessions, -1), draw.integers(1, 2 * self.history, size=sessions)
        histories = np.empty(0, np.int64)
        for part in np.array_split(np.arange(self.samples), SEGMENTS):
            items = row_of[np.searchsorted(popularity, draw.random(len(part)) * popularity[-1])]
            found = np.unique(of_sample[part])
            new = found[begin[found] < 0]
            ends = np.cumsum(size[new])
            begin[new] = len(histories) + ends - size[new]
            at = np.searchsorted(popularity, draw.random(ends[-1:].sum()) * popularity[-1])
            histories = np.concatenate([histories, row_of[at]])
            lists = rows_of_spans((begin[of_sample[part]], size[of_sample[part]]))
            ends = np.concatenate([[0], np.cumsum(size[of_sample[part]])])
            yield pa.table(
                {
                    "session_id": of_sample[part],
                    "timestamp": (times[part] * 1e9).astype(np.int64),
                    "label": draw.integers(2, size=len(part)).astype(np.float32),
                    "history": pa.ListArray.from_arrays(ends.astype(np.int32), histories[lists]),
                    "item": pa.ListArray.from_arrays(
                        np.arange(len(part) + 1, dtype=np.int32), items
                    ),
                }
            )
            moved = draw.choice(self.rows, round(self.swapped * self.rows), replace=False)
            row_of[moved] = row_of[draw.permutation(moved)]


@dataclass(frozen=True, kw_only=True)
class Real(HonestyTable):
    """One of the small real tables, in which rows drift as they really did."""

    use: Mapping[str, Any]
    timed: bool = True
    """Whether its rows are in the order of time, over days or months."""
    tables: tuple[str, ...] = ()
    """The tables whose forecasts are tested; by default all."""

    @property
    def drifts(self) -> bool:
        return self.timed

    def dataset(self, folder: Path) -> Mapping[str, Any]:
        return self.use

    def counted(self, stack: Stack) -> Mapping[str, Counted]:
        every = super().counted(stack)
        return {name: every[name] for name in self.tables or every}


def generated_tables(samples: int) -> Iterator[Generated]:
    """Stationary and drifting, shuffled and in the order of time, skew 0.8 to 1.3, S 1 to 30."""
    cases = [
        (0.8, 1.0), (0.8, 30.0), (0.9, 4.0), (1.05, 1.0), (1.05, 10.0), (1.2, 4.0), (1.3, 30.0),
    ]  # fmt: skip
    for swapped in (0.0, 0.01):
        for number, (exponent, size) in enumerate(cases):
            for shuffled in (True, False):
                if shuffled == bool(number % 2) and number:
                    continue
                kind = "drifting" if swapped else "stationary"
                order = "shuffled" if shuffled else "in time"
                yield Generated(
                    name=f"zipf {exponent} S {size:g} {kind} {order}".replace(" ", "_"),
                    exponent=exponent,
                    samples_per_session=size,
                    swapped=swapped,
                    shuffled=shuffled,
                    samples=samples,
                    seed=number,
                )


def real_tables(folder: Path) -> Iterator[Real]:
    """The real tables that are in `folder`."""
    clicks, ratings = folder / "yoochoose/clicks.tsv", folder / "ml100k/ml-100k.inter"
    criteo = folder / "criteo/kaggle_8k.tsv"
    for shuffled in (True, False):
        order = "shuffled" if shuffled else "in_time"
        if clicks.exists():
            use: Mapping[str, Any] = {"use": "yoochoose", "path": str(clicks), "history": "growing"}
            yield Real(name=f"yoochoose_{order}", use=use, shuffled=shuffled, batch_size=128)
        if ratings.exists():
            use = {"use": "movielens", "path": str(ratings)}
            yield Real(name=f"ml100k_{order}", use=use, shuffled=shuffled, batch_size=128)
    if criteo.exists():
        use = {"use": "criteo", "train": [str(criteo)], "index": "hash"}
        yield Real(name="criteo", use=use, timed=False, tables=("cat_2",), batch_size=32)
