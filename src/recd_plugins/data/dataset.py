"""What the `dataset` slot builds: rows with a schema, in two splits."""

from __future__ import annotations

import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Literal, cast

import pyarrow as pa

from recd_plugins.data.progress import Progress, silent
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.errors import RecdError, check_made, listed
from recd_plugins.notices import NoticeWarning

__all__ = ["SPLITS", "Dataset", "Split", "Tables"]

Split = Literal["train", "test"]
"""Which part of a dataset is meant: the one that is trained on, or the one that is held out."""
SPLITS: tuple[Split, ...] = ("train", "test")
"""Both splits; the one that is trained on comes first."""


@dataclass(frozen=True, kw_only=True)
class Tables:
    """A dataset on disk."""

    train: Table
    test: Table

    @property
    def schema(self) -> Schema:
        return self.train.schema

    def __getitem__(self, split: Split) -> Table:
        return self.train if split == "train" else self.test


class Dataset(ABC):
    """Authors write `schema` and `chunks`; this base class writes the tables, once."""

    in_place: bool = False
    """Whether the rows are already tables: then `prepare` opens them and writes nothing."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The columns. This may read the source (a vocabulary pass), so call it once."""

    @abstractmethod
    def chunks(self, split: Split) -> Iterator[pa.Table]:
        """The rows of a split, in order, in chunks that fit in memory."""

    def num_rows(self, split: Split) -> int | None:
        """The number of rows of a split for progress, or None if it is not known beforehand."""
        return None

    def fingerprint(self) -> str:
        """Changes with the source's content, so that a stale table is never reused."""
        return ""

    def prepare(self, folder: Path, progress: Progress = silent) -> Tables:
        """The splits as tables: written under `folder`, or where they already are."""
        return self.write(folder, progress)

    def write(self, folder: Path, progress: Progress = silent) -> Tables:
        """The splits as tables under `folder`; tables that are already there are used as they are.

        If a user's error interrupts it, nothing of an unfinished table is left.
        """
        began = not any((folder / split).exists() for split in SPLITS)
        try:
            tables = {split: self._table(folder / split, split, progress) for split in SPLITS}
        except RecdError:
            if began:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return Tables(train=tables["train"], test=tables["test"])

    def _table(self, path: Path, split: Split, progress: Progress) -> Table:
        if path.is_dir():
            return Table.open(path)
        schema, total = self.schema, self.num_rows(split)
        whose = f"of {type(self).__name__} is"
        fix = "Return a Schema of the columns."
        check_made(schema, Schema, f"dataset: `schema` {whose}", fix)
        if total is not None:
            fix = "Return the number of rows, or None."
            check_made(total, Integral, f"dataset: `num_rows` {whose}", fix)
        chunks = _tables(self, split, frozenset(schema.columns))
        return write_table(path, schema, chunks, progress=progress, total=total)


def _tables(dataset: Dataset, split: Split, columns: frozenset[str]) -> Iterator[pa.Table]:
    """The chunks of a split, each checked to be a table; a notice names those of its columns that
    are not written."""
    chunks: object = dataset.chunks(split)
    fix, whose = "Yield tables, as `yield pa.table({...})`.", f"of {type(dataset).__name__} is"
    check_made(chunks, Iterable, f"dataset: `chunks` {whose}", fix)
    left: set[str] = set()
    for chunk in cast("Iterable[object]", chunks):
        check_made(chunk, pa.Table, f"dataset: a chunk {whose}", fix)
        table = cast("pa.Table", chunk)
        if new := [name for name in table.column_names if name not in columns | left]:
            left.update(new)
            warnings.warn(
                f"dataset: {type(dataset).__name__} yields {listed(new, kind='column')} in split "
                f"{split!r}, of which its `schema` says nothing, so it is not written. Name it in "
                "the schema, or do not yield it.",
                NoticeWarning,
                stacklevel=2,
            )
        yield table
