"""The `parquet` dataset: tables that somebody else wrote."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from recd_plugins.config import Config
from recd_plugins.data.conform.rows import conform
from recd_plugins.data.dataset import SPLITS, Dataset, Split, Tables
from recd_plugins.data.files import opened, table_files
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import Progress, Table, read_stripe, silent
from recd_plugins.notices import NoticeWarning

__all__ = ["ParquetConfig", "ParquetTables", "build_parquet"]


@dataclass(frozen=True, kw_only=True)
class ParquetConfig(Config):
    """Where the tables are and, unless their footers say it, what their columns mean."""

    train: Path | tuple[Path, ...]
    """A folder of .parquet files, a file, a glob, or several of them."""
    test: Path | tuple[Path, ...]
    """Likewise, held out."""
    schema: ForeignSchema | None = None
    """The columns' meaning; by default what the first file's footer says."""


class ParquetTables(Dataset):
    """Read where they are: `prepare` copies nothing, unless the schema drops rows."""

    def __init__(self, config: ParquetConfig) -> None:
        self._config = config
        self.in_place = config.schema is None or not config.schema.drops

    @property
    def schema(self) -> Schema:
        given = self._config.schema
        return self._open("train").schema if given is None else given.conformed

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        if self.in_place:
            table = self._open(split)
            yield from (table.read(stripe) for stripe in table.stripes)
        else:
            yield from self._left(split)

    def num_rows(self, split: Split) -> int | None:
        return self._open(split).num_rows if self.in_place else None

    def fingerprint(self) -> str:
        files = [file for split in SPLITS for file in table_files(self._paths(split))]
        if self._config.schema is not None:
            vocabularies = (one.vocabulary for one in self._config.schema.sparse)
            files += [file for file in vocabularies if file is not None and file.exists()]
        stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return hashlib.sha256(repr(stats).encode()).hexdigest()

    def prepare(self, folder: Path, progress: Progress = silent) -> Tables:
        if not self.in_place:
            return self.write(folder, progress)
        return Tables(train=self._open("train"), test=self._open("test"))

    def _left(self, split: Split) -> Iterator[pa.Table]:
        """The rows that the schema does not drop; a warning says how many it does."""
        schema, dropped, rows = self._config.schema, Counter[str](), 0
        assert schema is not None  # it drops rows
        table = Table.open(self._paths(split), schema.keeping_all)
        for stripe in table.stripes:
            with opened(stripe.file) as file:
                chunk = read_stripe(file, stripe, schema.columns)
            left = conform(chunk, schema, str(stripe), dropped=dropped)
            rows += chunk.num_rows - left.num_rows
            yield left
        if rows:
            each = ", ".join(f"{count:,} in {name!r}" for name, count in dropped.items() if count)
            warnings.warn(
                f"{table.path}: {rows:,} of {table.num_rows:,} rows are left out of split "
                f"{split!r}, as `nulls: drop` of dataset.schema has it: nulls are {each}.",
                NoticeWarning,
                stacklevel=2,
            )

    def _open(self, split: Split) -> Table:
        return Table.open(self._paths(split), self._config.schema)

    def _paths(self, split: Split) -> Path | tuple[Path, ...]:
        return self._config.train if split == "train" else self._config.test


def build_parquet(config: ParquetConfig, context: Any) -> ParquetTables:
    """The record's build; `context` is a `slots.Context`."""
    return ParquetTables(config)
