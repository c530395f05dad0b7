"""RecD's characterization of a table (the paper's section 3), in memory of a chosen size.

The table is first read batch by batch in its stored order. It is then clustered by session on disk,
unless it already is, and read session by session and batch by batch again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa

from recd_plugins.api import Config, Context, DataError, Range
from recd_plugins.api.data import Progress, StatsReport, Table, write_table

if TYPE_CHECKING:
    from recd_dedup.stats.repeats import BatchRepeats, SessionRepeats
    from recd_dedup.stats.session_rows import SessionRows

__all__ = ["SessionCounts", "SessionStats", "SessionStatsConfig", "build_session_stats"]

BLOCK_ROWS = 1 << 17
"""How many rows are compared at a time, or fewer if memory is short; a longer session is compared
in stretches."""
BLOCK_SHARE = 8
"""The share of memory for a block is an 8th: a block is held about three times, and Arrow keeps
memory that it once had."""
FOLDER = "measuring-"
"""What the names of a measurement's folders begin with."""


@dataclass(frozen=True, kw_only=True)
class SessionStatsConfig(Config):
    """The `sessions` measure."""

    batch_size: Annotated[int, Range(ge=1)] = 4096
    """B, the number of samples of a batch."""
    max_rows: Annotated[int, Range(ge=1)] | None = None
    """About how many rows are measured: whole sessions, drawn by their hash, and batches evenly
    spaced over the table; by default all rows. Set it if the table is large."""
    together: Annotated[float, Range(gt=0, le=1)] = 0.9
    """The share that makes features a group: of the samples in which one of two features changes,
    both change in at least this share."""
    memory_gb: Annotated[float, Range(gt=0, le=1e9)] = 1.0
    """The memory for rows, in GB. A batch is held whole in any case."""


@dataclass(frozen=True, kw_only=True)
class SessionCounts:
    """All counts of a table."""

    table: Table
    config: SessionStatsConfig
    was_clustered: bool
    """Whether the stored table was already clustered by session."""
    rows: int
    """How many of the table's rows were measured."""
    sessions: SessionRepeats
    stored: BatchRepeats
    """Counts of batches in the table's stored order."""
    clustered: BatchRepeats
    """Counts of batches of the table clustered by session."""


class SessionStats:
    """Measures how much a table repeats itself."""

    def __init__(self, config: SessionStatsConfig, scratch: Path) -> None:
        """`scratch` is a folder for a clustered copy and a sample during the measurement."""
        self._config = config
        self._scratch = scratch

    def measure(self, table: Table, progress: Progress) -> StatsReport:
        from recd_dedup.stats.session_report import report

        return report(self.count(table, progress))

    def count(self, table: Table, progress: Progress) -> SessionCounts:
        """The counts from which the report is made."""
        from recd_dedup.etl.cluster import ClusterBySession, ClusterConfig
        from recd_dedup.stats.repeats import BatchRepeats, SessionRepeats
        from recd_dedup.stats.session_rows import batches, blocks, chunks, without_dense

        _check(table)
        narrow, names = without_dense(table), table.schema.sparse_names
        stored, clustered = BatchRepeats(names), BatchRepeats(names)
        sessions = SessionRepeats(names)
        for batch in self._batches(narrow, progress):
            stored.add(batch)
        with _folder_within(self._scratch) as folder:
            sample = self._sample(narrow, folder / "sample", progress)
            was_clustered = _is_clustered(sample)
            if not was_clustered:
                step = ClusterBySession(ClusterConfig(memory_gb=self._config.memory_gb))
                sample = without_dense(step.run(sample, folder / "clustered", progress))
            reported = _reported(chunks(sample), "sessions", progress, sample.num_rows)
            for block in blocks(reported, narrow.schema, self._block_rows(sample)):
                sessions.add(block)
            sessions.close()
            reported = _reported(chunks(sample), "batches clustered", progress, sample.num_rows)
            for batch in batches(reported, narrow.schema, self._config.batch_size):
                clustered.add(batch)
        return SessionCounts(
            table=table,
            config=self._config,
            was_clustered=was_clustered,
            rows=sessions.sizes.num_samples,
            sessions=sessions,
            stored=stored,
            clustered=clustered,
        )

    def _batches(self, table: Table, progress: Progress) -> Iterator[SessionRows]:
        """Batches in stored order: all, or as many as `max_rows` allows, evenly spaced."""
        from recd_dedup.stats.session_rows import batches, chunks

        limit, size = self._config.max_rows, self._config.batch_size
        if limit is None or limit >= table.num_rows:
            reported = _reported(chunks(table), "batches as stored", progress, table.num_rows)
            yield from batches(reported, table.schema, size)
            return
        wanted = max(1, limit // size)
        for number in range(wanted):
            start = number * (table.num_rows // wanted)
            yield next(batches(chunks(table, skip=start), table.schema, size))
            progress("batches as stored", number + 1, wanted)

    def _block_rows(self, table: Table) -> int:
        from recd_dedup.etl.scan import decoded_bytes

        per_row = decoded_bytes(table) / table.num_rows
        return max(1, min(BLOCK_ROWS, int(self._config.memory_gb * 1e9 / BLOCK_SHARE / per_row)))

    def _sample(self, table: Table, folder: Path, progress: Progress) -> Table:
        """The table, or a sample of whole sessions if `max_rows` is smaller than the table."""
        from recd_dedup.hashing import mix, salt
        from recd_dedup.stats.session_rows import chunks

        limit, column = self._config.max_rows, table.schema.session_id
        if limit is None or limit >= table.num_rows:
            return table
        bound = limit * 2**64 // table.num_rows

        def drawn() -> Iterator[pa.Table]:
            for chunk in _reported(chunks(table), "drawing sessions", progress, table.num_rows):
                hashes = mix(chunk[column].to_numpy(), salt(0, "stats"))
                yield chunk.filter(pa.array(hashes < bound))

        sample = write_table(folder, table.schema, drawn())
        if not sample.num_rows:
            raise DataError(
                f"{table.path}: no session is drawn for max_rows: {limit}. Raise it, or leave it "
                "out to measure all rows."
            )
        return sample


def _check(table: Table) -> None:
    if table.schema.session_id is None:
        raise DataError(
            f"{table.path}: its schema names no session_id, and repetition is measured within "
            "sessions. Name the column as `session_id` in the table's schema."
        )
    if not table.schema.sparse_names:
        raise DataError(
            f"{table.path}: its schema has no sparse features, and what is measured is how often "
            "their lists repeat. Name a table that has some."
        )
    if not table.num_rows:
        raise DataError(f"{table.path}: has no rows, so there is nothing to measure.")


def _is_clustered(table: Table) -> bool:
    """Whether sessions are in the order of their ids, or in that of `cluster_by_session`.

    A table clustered in another order is clustered again, which is slower but does no harm.
    """
    from recd_dedup.hashing import mix

    session = table.schema.session_id
    assert session is not None  # `_check` made sure of it
    last: list[tuple[int, int]] = []
    by_id = by_hash = True
    for rows in table.each_read([session]):
        ids = rows[0].to_numpy()
        hashes = mix(ids)
        by_id &= bool((ids[1:] >= ids[:-1]).all())
        by_hash &= bool((hashes[1:] >= hashes[:-1]).all())
        if last:
            by_id &= last[-1][0] <= int(ids[0])
            by_hash &= last[-1][1] <= int(hashes[0])
        last = [(int(ids[-1]), int(hashes[-1]))]
        if not (by_id or by_hash):
            return False
    return True


@contextmanager
def _folder_within(scratch: Path) -> Iterator[Path]:
    """A folder for the tables of one measurement, which holds a lock on it until its end. Folders
    that killed measurements left, on which nobody holds a lock, are removed first."""
    scratch.mkdir(parents=True, exist_ok=True)
    with _open(scratch) as all_of_them:
        _lock(all_of_them)  # so that none is removed between its making and its lock
        for left in scratch.glob(f"{FOLDER}*"):
            with suppress(OSError), _open(left) as opened:
                if _lock(opened, wait=False):
                    shutil.rmtree(left)
        folder = tempfile.TemporaryDirectory(prefix=FOLDER, dir=scratch)
        mine = os.open(folder.name, os.O_RDONLY)
        _lock(mine)
    try:
        with folder as name:
            yield Path(name)
    finally:
        os.close(mine)


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(folder: int, *, wait: bool = True) -> bool:
    """Whether an open folder is locked now, until it is closed; not every file system can."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _reported(
    parts: Iterable[pa.Table], what: str, progress: Progress, total: int
) -> Iterator[pa.Table]:
    done = 0
    for part in parts:
        yield part
        done += part.num_rows
        progress(what, done, total)


def build_session_stats(config: SessionStatsConfig, context: Context) -> SessionStats:
    return SessionStats(config, context.folder)
