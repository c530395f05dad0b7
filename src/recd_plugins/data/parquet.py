"""The `parquet` dataset: tables that somebody else wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.config import Config
from recd_plugins.data.dataset import SPLITS, Dataset, Split, Tables
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import Progress, Table, silent

__all__ = ["ParquetConfig", "ParquetTables", "build_parquet"]


@dataclass(frozen=True, kw_only=True)
class ParquetConfig(Config):
    """Where the tables are and, unless their footers say it, what their columns mean."""

    train: Path
    """A folder of .parquet files, or one file."""
    test: Path
    """Likewise, held out."""
    schema: Schema | None = None
    """The columns' meaning; by default what the first file's footer says."""


class ParquetTables(Dataset):
    """Read where they are: `prepare` copies nothing."""

    in_place = True

    def __init__(self, config: ParquetConfig) -> None:
        self._config = config

    @property
    def schema(self) -> Schema:
        return self._open("train").schema

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        for stripe in self._open(split).stripes:
            with pq.ParquetFile(stripe.file) as file:
                yield file.read_row_group(stripe.group, columns=list(self.schema.columns))

    def num_rows(self, split: Split) -> int:
        return self._open(split).num_rows

    def fingerprint(self) -> str:
        files = [file for split in SPLITS for file in self._open(split).files]
        stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return hashlib.sha256(repr(stats).encode()).hexdigest()

    def prepare(self, folder: Path, progress: Progress = silent) -> Tables:
        return Tables(train=self._open("train"), test=self._open("test"))

    def _open(self, split: Split) -> Table:
        path = self._config.train if split == "train" else self._config.test
        return Table.open(path, self._config.schema)


def build_parquet(config: ParquetConfig, context: Any) -> ParquetTables:
    """The record's build; `context` is a `slots.Context`."""
    return ParquetTables(config)
