"""Synthetic traces (DLRM, 4.2): rows whose ids repeat like those of a profiled trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa

from recd_dlrm.datasets.flat_columns import I64, id_lists
from recd_dlrm.datasets.random import RowsConfig
from recd_dlrm.datasets.sources import check_sources, fingerprint, text_lines
from recd_dlrm.datasets.trace.stack_distance import (
    StackProfile,
    SyntheticTrace,
    adjusted_floor,
    profile,
)
from recd_plugins.api import Config, Context, DataError, Range, RegistryError
from recd_plugins.api.data import SPLITS, Dataset, Schema, SparseFeature, Split, Table

__all__ = ["SyntheticRows", "TraceConfig", "TraceFeature", "build_trace"]


@dataclass(frozen=True, kw_only=True)
class TraceFeature(Config):
    """A sparse feature and whose locality it has: of one source, or of the paper's Figure 3."""

    name: str
    """The column's name."""
    profile: Path | None = None
    """A profile that `StackProfile.save` wrote, whose locality the feature has."""
    trace: Path | None = None
    """A text file of ids to profile, which spaces, commas or line ends separate."""
    table: Path | None = None
    """A table to profile: a folder of Parquet files, or one such file."""
    column: str | None = None
    """The sparse feature of `table` that is profiled; by default the one of the same name."""
    lookups: Annotated[int, Range(ge=1)] = 1
    """The number of ids per sample; they are consecutive accesses of the trace."""
    floor: Annotated[float | None, Range(ge=0, le=1)] = None
    """The least probability of a first access, until all ids have been seen. By default it is such
    that all ids are seen within the first 2% of the split."""
    renumber: bool = False
    """Whether ids become 0, 1, 2, ... in the order of first accesses. That makes tables smaller,
    and shows no id of the source."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.sources) > 1:
            raise RegistryError("profile, trace and table exclude each other: keep one of them.")
        if self.column is not None and self.table is None:
            raise RegistryError("names a column of no table: add `table`.", where="column")

    @property
    def sources(self) -> list[Path]:
        return [path for path in (self.profile, self.trace, self.table) if path is not None]


@dataclass(frozen=True, kw_only=True)
class TraceConfig(RowsConfig):
    """The `synthetic_trace` dataset. Each split is a trace of its own.

    dataset:
      use: synthetic_trace
      features:
        - {name: page, profile: page.parquet}
        - {name: item, table: data/train, column: history, lookups: 20}
        - {name: even}       # random.uniform(1, 100, 100K), as in the paper's Figure 3
    """

    features: tuple[TraceFeature, ...] = tuple(TraceFeature(name=f"cat_{i}") for i in range(4))
    """The sparse features."""
    adjusted: bool = True
    """Whether the paper's adjusted version draws the trace. Otherwise Algorithm 2 does as printed,
    which sees all ids late."""
    profiled_accesses: Annotated[int, Range(ge=1)] = 1_000_000
    """The number of accesses that are profiled at most, from the first one on. It bounds the
    memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.schema([1] * len(self.features))
        except RegistryError as error:  # a column named twice
            raise RegistryError(error.message, where="features") from None
        for feature in self.features if not self.adjusted else ():
            if feature.floor is not None:
                raise RegistryError(
                    f"the floor of {feature.name!r} does nothing here, because `adjusted: false` "
                    "has none: take one of the two out.",
                    where="features",
                )

    def idle_options(self) -> Mapping[str, str]:
        idle = dict(super().idle_options())
        if not any(feature.trace or feature.table for feature in self.features):
            why = "it is for features that name a trace or a table, and none does"
            idle |= dict.fromkeys(self.set_among("profiled_accesses"), why)
        return idle

    def schema(self, num_ids: Sequence[int]) -> Schema:
        """The columns, with this number of ids for each feature."""
        return Schema(
            session_id=None,
            timestamp=None,
            dense=self.dense_names,
            sparse=tuple(
                SparseFeature(name=feature.name, num_ids=ids)
                for feature, ids in zip(self.features, num_ids, strict=True)
            ),
        )


class SyntheticRows(Dataset):
    """Ids from synthetic traces; the rest of a row is as in `random`."""

    def __init__(self, config: TraceConfig) -> None:
        for feature in config.features:
            where = f"dataset.features: {feature.name}"
            check_sources(where, *feature.sources, folders=feature.table is not None)
        self.config = config

    @cached_property
    def profiles(self) -> dict[str, StackProfile]:
        """Each feature's profile, made by reading the sources."""
        config = self.config
        return {
            feature.name: _profile(feature, config.profiled_accesses, (config.seed, 0, index, 2))
            for index, feature in enumerate(config.features)
        }

    @cached_property
    def schema(self) -> Schema:
        return self.config.schema([profile.num_ids for profile in self.profiles.values()])

    def num_rows(self, split: Split) -> int:
        return self.config.num_rows(split)

    def fingerprint(self) -> str:
        return fingerprint(path for feature in self.config.features for path in feature.sources)

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        config, schema = self.config, self.schema
        traces = [
            self._trace(index, feature, split) for index, feature in enumerate(config.features)
        ]
        for rows, rng in config.chunk_rows(split):
            columns = config.label_and_dense(rows, rng, schema.label)
            for feature, trace in zip(config.features, traces, strict=True):
                ids = trace.take(rows * feature.lookups)
                columns[feature.name] = id_lists(ids, np.arange(rows + 1) * feature.lookups)
            yield pa.table(columns, schema=schema.arrow())

    def _trace(self, index: int, feature: TraceFeature, split: Split) -> SyntheticTrace:
        profile, floor = self.profiles[feature.name], feature.floor
        if floor is None:
            floor = adjusted_floor(profile, self.num_rows(split) * feature.lookups)
        # The last number makes this stream differ from those of the chunks.
        seed = (self.config.seed, SPLITS.index(split), index, 1)
        return SyntheticTrace(profile, seed, floor if self.config.adjusted else None)


def _profile(feature: TraceFeature, limit: int, seed: tuple[int, ...]) -> StackProfile:
    try:
        if feature.profile is not None:
            found = StackProfile.load(feature.profile)
        elif feature.trace is not None:
            found = profile(_read_trace(feature.trace, limit))
        elif feature.table is not None:
            found = profile(_column(feature.table, feature.column or feature.name, limit))
        else:
            found = profile(np.random.default_rng(seed).integers(1, 101, 100_000))
    except DataError as error:
        raise DataError(f"dataset.features: {feature.name}: {error}") from error
    if feature.renumber:
        found = found.renumbered()
    if (least := found.unique.min()) < 0:
        raise DataError(
            f"dataset.features: {feature.name}: its trace holds id {least}, but rows of a table "
            "are numbered from 0. Set `renumber: true`."
        )
    return found


def _read_trace(path: Path, limit: int) -> I64:
    """The first `limit` ids of a text file, separated by spaces, commas or line ends."""
    return np.fromiter(islice(_ids(path), limit), dtype=np.int64)


def _ids(path: Path) -> Iterator[int]:
    for number, line in enumerate(text_lines(path), 1):
        for word in line.replace(",", " ").split():
            if not re.fullmatch(r"[+-]?[0-9]{1,18}", word):
                raise DataError(
                    f"{path}:{number}: {word!r} is not an id. A trace is whole numbers of at most "
                    "18 digits, separated by spaces, commas or line ends."
                )
            yield int(word)


def _column(path: Path, column: str, limit: int) -> I64:
    """The first `limit` ids of a table's column, row by row."""
    table = Table.open(path)
    table.schema.feature(column)
    parts: list[I64] = []
    for file, stripe in table.each_opened():
        rows = file.read_row_group(stripe.group, [column])
        parts.append(rows[column].combine_chunks().flatten().to_numpy())
        limit -= len(parts[-1])
        if limit <= 0:
            parts[-1] = parts[-1][: len(parts[-1]) + limit]
            break
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def build_trace(config: TraceConfig, context: Context) -> SyntheticRows:
    return SyntheticRows(config)
