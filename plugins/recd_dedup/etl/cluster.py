"""O2: clustering, which puts the samples of a session next to each other, in order of time.

Sessions are ordered by the hash of their ids. So the rows and their order are the same for any
`memory_gb` and engine, and sessions of all times are mixed. A session is never split across files.
Parquet compresses by page, so a list that repeats within a page (1 MiB) costs next to nothing; a
clustered session fits in a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from recd_dedup.etl.checksum import Checksum
from recd_dedup.etl.parts import (
    PART_STRIPES,
    STRIPE_ROWS,
    Bucket,
    Budget,
    FilePart,
    Parts,
    Workspace,
    fingerprint,
)
from recd_dedup.etl.scan import decoded_bytes, require_sessions
from recd_dedup.etl.spills import Spills
from recd_plugins.api import (
    Config,
    Context,
    Etl,
    GivesNotices,
    Notice,
    Range,
    RegistryError,
    Unneeded,
)
from recd_plugins.api.data import Progress, Schema, Table, silent

__all__ = ["ClusterBySession", "ClusterConfig", "build_cluster", "cluster_buckets"]

MOST_BUCKETS = 65_536
"""Each bucket is written and read in its own pieces: with more, every row would be a piece."""
FEW_BUCKETS = 1_024
"""This many buckets take hardly any time, even if most are empty."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(Config):
    """The `cluster_by_session` step."""

    memory_gb: Annotated[float, Range(gt=0, le=1e9)] = 1.0
    """The memory for rows, in GB. A larger table is sorted in more buckets, not in more memory."""
    engine: Literal["pyarrow", "spark"] = "pyarrow"
    """The program that sorts: `pyarrow`, or `spark`, which needs pyspark and Java and yields the
    same rows in the same order. Choose `spark` if a table outgrows one machine's disk."""
    spark_master: str = "local[*]"
    """The master on which `spark` runs. `local[*]` takes all cores of this machine, `local[2]` two
    threads of it."""
    compression_level: Annotated[int, Range(ge=1, le=19)] = 3
    """The level of zstd: a higher one writes smaller files. On an RM1-like table, level 3 made
    files 25% smaller than level 1, in the same time."""
    leave_out_repeats: bool = False
    """Whether the files have a null for each list of ids that equals the list of the row before.
    Files get smaller and no list is decoded twice, but other readers of Parquet see the nulls."""

    def idle_options(self) -> Mapping[str, str]:
        if self.engine == "spark":
            return {}
        why = f"it is for `engine: spark`, and engine is {self.engine}"
        return dict.fromkeys(self.set_among("spark_master"), why)


class ClusterBySession(GivesNotices):
    """The pyarrow engine: a bucket pass, then a pass that sorts one bucket after another."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._budget = Budget.of(config.memory_gb)
        self._in_order: list[bool] = []
        """Whether the rows of each table that was clustered were in order before."""

    def notices(self) -> Sequence[Notice]:
        if not self._in_order or not all(self._in_order) or self._config.leave_out_repeats:
            return ()
        return [
            Unneeded(
                what="etl: cluster_by_session",
                why="the rows that it was given were clustered already, in the same order",
                cure="Take it out: it only writes them once more.",
            )
        ]

    def run(self, table: Table, folder: Path, progress: Progress = silent) -> Table:
        """Cluster a table; if a run was killed, the next one goes on from what it had finished."""
        require_sessions(table.schema, "cluster_by_session", table.path)
        size = decoded_bytes(table)
        n_buckets = max(1, math.ceil(size / self._budget.bucket))
        most = min(MOST_BUCKETS, max(FEW_BUCKETS, table.num_rows))
        if n_buckets > most:
            why = "more take days" if most == MOST_BUCKETS else "no more have a row"
            raise RegistryError(
                f"memory_gb: a table of {size / 1e9:,.3g} GB would be clustered in {n_buckets:,} "
                f"buckets, but there can be {most:,} at most: {why}. Give it "
                f"{12 * size / most / 1e9:.2g} GB, or more."
            )
        plan = {"source": fingerprint(table), "config": asdict(self._config)}
        with Workspace(folder, plan) as workspace:
            spills = Spills(workspace.path / "spills", table.schema, n_buckets)
            spills.fill(table, self._budget.band, progress, f"bucketing {folder.name}")
            self._in_order.append(spills.were_in_order)
            rows_per_stripe = self._budget.stripe_rows(size / max(1, table.num_rows))
            parts = Parts(
                workspace,
                table.schema,
                band_bytes=self._budget.band,
                rows_per_stripe=rows_per_stripe,
                compression_level=self._config.compression_level,
                leave_out_repeats=self._config.leave_out_repeats,
            )
            done, what = 0, f"sorting {folder.name}"
            progress(what, 0, table.num_rows)
            for part in _parts(spills, rows_per_stripe * PART_STRIPES):
                done += parts.write(part).rows
                progress(what, done, table.num_rows)
            return parts.publish()


def cluster_buckets(
    buckets: Sequence[Bucket],
    schema: Schema,
    folder: Path,
    *,
    memory_gb: float = 1.0,
    compression_level: int = 3,
    source: str = "",
    progress: Progress = silent,
) -> Table:
    """Cluster rows that are already in buckets by session, as in log shards, into one file per
    bucket.

    No session may be in two buckets. Each bucket is iterated once, in order. If `source` identifies
    the contents of the buckets, a killed run can be resumed.
    """
    require_sessions(schema, "cluster_by_session", folder)
    budget = Budget.of(memory_gb)
    plan = {"source": source, "buckets": len(buckets), "schema": schema.to_json()}
    with Workspace(folder, plan, resume=bool(source)) as workspace:
        parts = Parts(
            workspace,
            schema,
            band_bytes=budget.band,
            rows_per_stripe=STRIPE_ROWS,
            compression_level=compression_level,
        )
        what = f"sorting {folder.name}"
        progress(what, 0, len(buckets))
        for index, bucket in enumerate(buckets):
            parts.write(FilePart(name=f"part-{index:05}", buckets=[bucket]))
            progress(what, index + 1, len(buckets))
        if not buckets:
            parts.write(FilePart(name="part-00000", buckets=[]))
        return parts.publish()


def _parts(spills: Spills, rows: int) -> Iterator[FilePart]:
    """Parts of at least `rows` rows (the last may have fewer), each of consecutive buckets."""
    number, first, before = 0, 0, Checksum()
    for index, bucket in enumerate(spills.sums):
        before += bucket
        if before.rows >= rows or index == len(spills.sums) - 1:
            yield FilePart(
                name=f"part-{number:05}",
                buckets=[_Bucket(spills, i) for i in range(first, index + 1)],
                before=before,
            )
            number, first, before = number + 1, index + 1, Checksum()


@dataclass(frozen=True)
class _Bucket:
    """A bucket of spills, read when iterated."""

    spills: Spills
    index: int

    def __iter__(self) -> Iterator[Any]:
        return self.spills.bucket(self.index)


def build_cluster(config: ClusterConfig, context: Context) -> Etl:
    if config.engine == "spark":
        from recd_dedup.etl.spark import ClusterWithSpark

        return ClusterWithSpark(config)
    return ClusterBySession(config)
