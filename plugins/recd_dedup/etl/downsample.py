"""Downsampling: by whole sessions, which keeps S, or sample by sample, which lowers it.

RecD (section 7) proposes the former: DedupeFactor grows with S, the samples per session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recd_dedup.etl.scan import require_sessions, scan
from recd_dedup.hashing import U64, mix, salt
from recd_plugins.api import Config, Context, Range, so_many
from recd_plugins.api.data import Progress, Schema, Table, silent, write_table

__all__ = [
    "DownsampleConfig",
    "DownsampleReport",
    "DownsampleSamples",
    "DownsampleSessions",
    "Population",
    "SessionCount",
    "build_downsample_samples",
    "build_downsample_sessions",
]


@dataclass(frozen=True)
class Population:
    """The number of samples, and of their sessions."""

    samples: int
    sessions: int | None
    """None if the table has no sessions."""

    @property
    def samples_per_session(self) -> float | None:
        """S; None if there are no sessions."""
        return self.samples / self.sessions if self.sessions else None

    def __str__(self) -> str:
        mean = self.samples_per_session
        return f"{so_many(self.samples, 'sample')}" + ("" if mean is None else f" (S = {mean:.2f})")


class SessionCount:
    """Counts distinct sessions: exactly up to `most`, above that by adaptive sampling (Wegman).

    It keeps the sessions whose hash is at most a limit, which is halved when there are too many;
    n kept sessions stand for n 2^64 / (limit + 1) sessions. The error is about most^-0.5.
    """

    def __init__(self, schema: Schema, most: int = 1 << 20) -> None:
        self.samples = 0
        self._session_id = schema.session_id
        self._most = most
        self._limit = (1 << 64) - 1
        self._held: U64 = np.empty(0, np.uint64)
        self._salt = salt(0, "session count")

    def add(self, chunk: pa.Table) -> None:
        self.samples += chunk.num_rows
        if self._session_id is None:
            return
        hashes = mix(chunk[self._session_id].to_numpy(), self._salt)
        new = np.unique(hashes[hashes <= np.uint64(self._limit)])
        self._held = np.union1d(self._held, new)
        while self._held.size > self._most:
            self._limit >>= 1
            self._held = self._held[self._held <= np.uint64(self._limit)]

    def population(self) -> Population:
        if self._session_id is None:
            return Population(self.samples, None)
        return Population(self.samples, round(self._held.size * 2**64 / (self._limit + 1)))


Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class DownsampleConfig(Config):
    """The `downsample_sessions` and `downsample_samples` steps."""

    keep: Annotated[float, Range(gt=0, le=1)] = 0.5
    """The probability that a session (or a sample) is kept."""
    seed: Annotated[int, Range(ge=0)] = 0
    """The seed of the draw; `train.seed` does not change it. The same seed keeps the same sessions
    (or samples)."""


@dataclass(frozen=True)
class DownsampleReport:
    """The effect of a step on S."""

    before: Population
    after: Population

    def __str__(self) -> str:
        return f"downsampled {self.before} to {self.after}"


class _Downsample(ABC):
    """Makes one pass over the table, chunk by chunk, and then sets `report`."""

    name: ClassVar[str]
    by_session: ClassVar[bool]
    report: DownsampleReport | None = None

    def __init__(self, config: DownsampleConfig, *, chunk_bytes: int = 32 << 20) -> None:
        self._config = config
        self._chunk_bytes = chunk_bytes
        self._last = np.uint64(min(max(1, round(config.keep * 2**64)), 2**64) - 1)

    def run(self, table: Table, folder: Path, progress: Progress = silent) -> Table:
        if self.by_session:
            require_sessions(table.schema, self.name, table.path)
        before, after = SessionCount(table.schema), SessionCount(table.schema)

        def kept() -> Iterator[pa.Table]:
            for chunk in scan(table, self._chunk_bytes):
                rest = chunk.filter(pa.array(self._kept(chunk, table.schema, before.samples)))
                before.add(chunk)
                after.add(rest)
                yield rest
                progress(f"downsampling {folder.name}", before.samples, table.num_rows)

        result = write_table(folder, table.schema, kept())
        self.report = DownsampleReport(before.population(), after.population())
        progress(str(self.report), table.num_rows, table.num_rows)
        return result

    @abstractmethod
    def _kept(self, chunk: pa.Table, schema: Schema, first: int) -> Mask:
        """[N] which rows are kept; the chunk's first row is the table's row `first`."""

    def _draw(self, subjects: NDArray[np.int64]) -> Mask:
        return mix(subjects, salt(self._config.seed, self.name)) <= self._last


class DownsampleSessions(_Downsample):
    """Keeps or drops whole sessions, by a hash of the id: the same in every table and split."""

    name = "downsample_sessions"
    by_session = True

    def _kept(self, chunk: pa.Table, schema: Schema, first: int) -> Mask:
        return self._draw(chunk[schema.session_id].to_numpy())


class DownsampleSamples(_Downsample):
    """Keeps or drops single samples, by a hash of the sample's place in the table."""

    name = "downsample_samples"
    by_session = False

    def _kept(self, chunk: pa.Table, schema: Schema, first: int) -> Mask:
        return self._draw(np.arange(first, first + chunk.num_rows))


def build_downsample_sessions(config: DownsampleConfig, context: Context) -> DownsampleSessions:
    return DownsampleSessions(config)


def build_downsample_samples(config: DownsampleConfig, context: Context) -> DownsampleSamples:
    return DownsampleSamples(config)
