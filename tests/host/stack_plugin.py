"""A plugin of small parts for the stack's tests, named in their registries by its path."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins import hookimpl
from recd_plugins.config import Config
from recd_plugins.data.columns import Columns
from recd_plugins.data.dataset import Dataset, Split
from recd_plugins.data.progress import Progress
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.slots import (
    CacheRecord,
    Context,
    DatasetRecord,
    DedupRecord,
    EtlRecord,
    ModelRecord,
    PoolingRecord,
    PreprocessRecord,
    StatsRecord,
)

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("d",),
    sparse=(
        SparseFeature(name="user_a", num_ids=1000, kind="user"),
        SparseFeature(name="item", num_ids=500),
        SparseFeature(name="user_b", num_ids=2000, kind="user"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Options(Config):
    """What every part takes."""

    n: int = 1
    """A number."""
    log: Path = Path("log")
    """A file that gets a line for each table that is written."""
    stamp: Path | None = None
    """A file whose content the dataset's fingerprint is."""


class Counting(Dataset):
    """Row i has ids i (user_a), i + n (item), 2i (user_b), d = the seed; 40 rows, 8 in test."""

    def __init__(self, config: Options, context: Context) -> None:
        self.config = config
        self.seed = context.seed

    @property
    def schema(self) -> Schema:
        return SCHEMA

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        with self.config.log.open("a") as file:
            file.write(f"{split} {os.getpid()}\n")
        time.sleep(0.05)  # so that two processes would meet here
        rows = range(40 if split == "train" else 8)
        ids = {
            "user_a": [[i] for i in rows],
            "item": [[i + self.config.n] for i in rows],
            "user_b": [[2 * i] for i in rows],
        }
        columns = {"label": [i % 2 for i in rows], "d": [self.seed for _ in rows], **ids}
        yield pa.table(columns, schema=SCHEMA.arrow())

    def fingerprint(self) -> str:
        return self.config.stamp.read_text() if self.config.stamp else ""


@dataclass
class Every:
    """Keeps each n-th row."""

    config: Options

    def run(self, table: Table, folder: Path, progress: Progress) -> Table:
        with self.config.log.open("a") as file:
            file.write(f"every {self.config.n} {table.num_rows}\n")
        rows = pq.read_table(list(table.files))
        chunk = rows.take(list(range(0, rows.num_rows, self.config.n)))
        return write_table(folder, table.schema, [chunk], progress=progress)


@dataclass
class Modulo:
    """id -> id mod n."""

    config: Options

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=features.keys(),
            values=features.values() % self.config.n,
            lengths=features.lengths(),
        )

    def schema(self, schema: Schema) -> Schema:
        return schema.replace(
            dataclasses.replace(feature, num_ids=self.config.n) for feature in schema.sparse
        )


@dataclass
class Plus(Modulo):
    """id -> id + n."""

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=features.keys(),
            values=features.values() + self.config.n,
            lengths=features.lengths(),
        )

    def schema(self, schema: Schema) -> Schema:
        return schema.replace(
            dataclasses.replace(feature, num_ids=feature.num_ids + self.config.n)
            for feature in schema.sparse
        )


class Moves:
    """A dedup converter that does not say which features it takes."""

    def convert(self, features: Columns) -> KeyedJaggedTensor:
        return features.to_kjt()


class Keeper(nn.Module):
    """Keeps what it was built with."""

    def __init__(self, config: Config, context: Context) -> None:
        super().__init__()
        self.config = config
        self.context = context


class Built(NamedTuple):
    """What a measure, a cache and a pooling are built with; a trainer never asks them."""

    config: Options
    context: Context

    measure = plan = sharders = explain = __call__ = lambda *_: None


def _built(config: Options, context: Context) -> Built:
    return Built(config, context)


@hookimpl
def recd_dataset() -> Iterator[DatasetRecord[Any]]:
    yield DatasetRecord(name="counting", summary="Counts.", config=Options, build=Counting)


@hookimpl
def recd_etl() -> Iterator[EtlRecord[Any]]:
    yield EtlRecord(
        name="every", summary="Each n-th.", config=Options, build=lambda config, _: Every(config)
    )


@hookimpl
def recd_preprocess() -> Iterator[PreprocessRecord[Any]]:
    for name, kind in (("modulo", Modulo), ("plus", Plus)):
        yield PreprocessRecord(
            name=name,
            summary="On ids.",
            config=Options,
            build=lambda config, _, kind=kind: kind(config),
        )


@hookimpl
def recd_dedup() -> Iterator[DedupRecord[Any]]:
    yield DedupRecord(name="moves", summary="Moves.", config=Options, build=lambda *_: Moves())


@hookimpl
def recd_stats() -> Iterator[StatsRecord[Any]]:
    yield StatsRecord(name="stats", summary="A measure.", config=Options, build=_built)


@hookimpl
def recd_cache() -> Iterator[CacheRecord[Any]]:
    yield CacheRecord(name="cache", summary="A cache.", config=Options, build=_built)


@hookimpl
def recd_pooling() -> Iterator[PoolingRecord[Any]]:
    yield PoolingRecord(
        name="pool", summary="A pooling.", config=Options, build=_built, uses=("cache",)
    )


@hookimpl
def recd_model() -> Iterator[ModelRecord[Any]]:
    yield ModelRecord(name="keeper", summary="Keeps its config.", config=Options, build=Keeper)
    yield ModelRecord(
        name="uses",
        summary="Uses neighbours.",
        config=Options,
        build=Keeper,
        uses=("pooling", "stats", "cache"),
    )
