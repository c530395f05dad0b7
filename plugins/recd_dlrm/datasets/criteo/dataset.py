"""Criteo's click logs, Kaggle and Terabyte (DLRM, 4.3): raw rows to indices and log(1 + x).

A category becomes an index by its frequency, or by a hash; index 0 is for missing categories.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from recd_dlrm.datasets.criteo.raw_rows import (
    CATEGORIES,
    INTEGERS,
    CriteoRows,
    count_rows,
    read_rows,
)
from recd_dlrm.datasets.criteo.vocabularies import (
    FrequencyVocabulary,
    HashVocabulary,
    Vocabulary,
    count_categories,
)
from recd_dlrm.datasets.flat_columns import single_ids
from recd_dlrm.datasets.sources import check_sources, empty_split, fingerprint
from recd_plugins.api import Config, Context, Range, RegistryError
from recd_plugins.api.data import (
    Dataset,
    KeyCounts,
    Progress,
    Schema,
    SparseFeature,
    Split,
    Tables,
    silent,
)

__all__ = ["Criteo", "CriteoConfig", "build_criteo"]


@dataclass(frozen=True, kw_only=True)
class CriteoConfig(Config):
    """The `criteo` dataset. Rows are in the order of time, so the test rows are the last.

    Kaggle is one file of 7 days, of which the seventh is held out; Terabyte is one file per day:

        dataset: {use: criteo, train: [train.txt]}
        dataset: {use: criteo, train: [day_0.gz, day_1.gz], test: [day_2.gz], held_out: test}
    """

    train: tuple[Path, ...]
    """The raw files, which are read in this order; they may be compressed (.gz, .bz2, .zst)."""
    test: tuple[Path, ...] = ()
    """The raw files to test on. By default the last rows of `train` are held out instead."""
    test_fraction: Annotated[float, Range(gt=0, lt=1)] = 1 / 7
    """The share of the rows of `train` that is held out if `test` names no files; by default the
    last of seven days."""
    held_out: Literal["all", "validation", "test"] = "all"
    """The test split: all rows that are held out, their first half (validation), or their second
    half (test)."""
    index: Literal["frequency", "hash"] = "frequency"
    """How a category becomes an index: `frequency` numbers categories by how often the train rows
    have them, which takes one more pass and 32 bytes of memory for each distinct category; `hash`
    needs neither. Take `hash` if memory is short."""
    frequency_threshold: Annotated[int, Range(ge=1)] = 1
    """With `frequency`, a category that the train rows have less often than this gets index 0; by
    default none does."""
    num_ids: Annotated[int, Range(ge=2)] = 100_000
    """With `hash`, the rows of each table. Only missing categories have index 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train:
            raise RegistryError("names no file. Name one.", where="train")
        for path in self.test:
            if path in self.train:
                raise RegistryError(f"{path} is also under `train`: keep one.", where="test")
        hashed = self.index == "hash"
        for option, idle, why in (
            ("test_fraction", bool(self.test), "`test` names the files to hold out"),
            ("frequency_threshold", hashed, "`index: hash` counts no category"),
            ("num_ids", not hashed, "`index: frequency` makes a row of each category"),
        ):
            if idle and getattr(self, option) != getattr(CriteoConfig, option):
                raise RegistryError(f"does nothing here, because {why}: take it out.", where=option)


class FileSpan(NamedTuple):
    """Rows `start` to `stop` of a file."""

    path: Path
    start: int
    stop: int


class Criteo(Dataset):
    """13 dense features, log(1 + max(x, 0)), with missing ones as 0; 26 sparse features with one id
    each.

    Kaggle's second integer goes down to -3, others to -1: values below 0 count as 0, as in the
    authors' code. Test rows are encoded with the train rows' vocabulary; categories that it lacks
    are index 0.
    """

    def __init__(self, config: CriteoConfig) -> None:
        check_sources("dataset.train", *config.train)
        check_sources("dataset.test", *config.test)
        self.config = config
        self._progress: Progress = silent

    def prepare(self, folder: Path, progress: Progress = silent) -> Tables:
        self._progress = progress
        return super().prepare(folder, progress)

    def fingerprint(self) -> str:
        return fingerprint((*self.config.train, *self.config.test))

    def num_rows(self, split: Split) -> int:
        return sum(span.stop - span.start for span in self._spans[split])

    @cached_property
    def schema(self) -> Schema:
        return Schema(
            session_id=None,
            timestamp=None,
            dense=tuple(f"int_{i}" for i in range(INTEGERS)),
            sparse=tuple(
                SparseFeature(name=f"cat_{i}", num_ids=vocabulary.num_ids)
                for i, vocabulary in enumerate(self._vocabularies)
            ),
        )

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        for rows in self._rows(split):
            dense = (np.log1p(np.maximum(x, 0)).astype(np.float32) for x in rows.integers)
            sparse = (
                single_ids(vocabulary.encode(values))
                for vocabulary, values in zip(self._vocabularies, rows.categories, strict=True)
            )
            yield pa.table([rows.labels, *dense, *sparse], schema=self.schema.arrow())

    def _rows(self, split: Split) -> Iterator[CriteoRows]:
        for span in self._spans[split]:
            yield from read_rows(*span)

    @cached_property
    def _spans(self) -> dict[Split, list[FileSpan]]:
        config = self.config
        train = [self._whole(path) for path in config.train]
        held_out = [self._whole(path) for path in config.test]
        if not held_out:
            rows = sum(span.stop for span in train)
            cut = rows - round(rows * config.test_fraction)
            train, held_out = _part(train, 0, cut), _part(train, cut, rows)
        rows = sum(span.stop - span.start for span in held_out)
        half = (rows + 1) // 2
        if config.held_out == "validation":
            held_out = _part(held_out, 0, half)
        elif config.held_out == "test":
            held_out = _part(held_out, half, rows)
        spans: dict[Split, list[FileSpan]] = {"train": train, "test": held_out}
        for split, parts in spans.items():
            if not parts:
                raise empty_split(split, *config.train)
        return spans

    def _whole(self, path: Path) -> FileSpan:
        what, rows = f"counting the rows of {path.name}", 0
        for rows in count_rows(path):
            self._progress(what, rows, None)
        self._progress(what, rows, rows)
        return FileSpan(path, 0, rows)

    @cached_property
    def _vocabularies(self) -> list[Vocabulary]:
        config = self.config
        if config.index == "hash":
            return [HashVocabulary(config.num_ids)] * CATEGORIES
        counts = [KeyCounts(np.empty(0, np.int64)) for _ in range(CATEGORIES)]
        done = 0
        for rows in self._rows("train"):
            for count, values in zip(counts, rows.categories, strict=True):
                count_categories(values, count)
            done += len(rows)
            self._progress("counting categories", done, self.num_rows("train"))
        return [FrequencyVocabulary(count, config.frequency_threshold) for count in counts]


def _part(spans: list[FileSpan], start: int, stop: int) -> list[FileSpan]:
    """Rows `start` to `stop` of the concatenated spans."""
    part, before = [], 0
    for path, first, last in spans:
        low, high = max(start - before, 0), min(stop - before, last - first)
        if low < high:
            part.append(FileSpan(path, first + low, first + high))
        before += last - first
    return part


def build_criteo(config: CriteoConfig, context: Context) -> Criteo:
    return Criteo(config)
