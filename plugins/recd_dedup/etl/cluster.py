"""O2: the samples of a session side by side, in the order of time.

Sessions come in the order of their ids' hash, so the rows and their order are the same under
any `memory_gb` and engine, and sessions of all times lie mixed. A file never cuts a session.
Parquet compresses by page, so the page (1 MiB) is the window in which a repeated list costs
next to nothing: clustered, a session fits in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from recd_dedup.etl.budget import PART_STRIPES, STRIPE_ROWS, Budget
from recd_dedup.etl.checksum import Checksum
from recd_dedup.etl.parts import Bucket, Part, Parts, Workspace, fingerprint
from recd_dedup.etl.scan import decoded_bytes, require_sessions
from recd_dedup.etl.spills import Spills
from recd_plugins.api import Config, Context, Etl, Range
from recd_plugins.api.data import Progress, Schema, Table, silent

__all__ = ["ClusterBySession", "ClusterConfig", "build_cluster", "cluster_buckets"]


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(Config):
    """The `cluster_by_session` step."""

    memory_gb: Annotated[float, Range(gt=0)] = 1.0
    """Memory for rows, in GB; a larger table takes more buckets, not more memory."""
    engine: Literal["pyarrow", "spark"] = "pyarrow"
    """`spark` needs pyspark and Java, and yields the same rows in the same order."""
    spark_master: str = "local[*]"
    """Where `spark` runs: `local[2]` takes two threads of this machine."""
    compression_level: Annotated[int, Range(ge=1, le=19)] = 3
    """Of zstd. On an RM1-like table 3 made files 25% smaller than 1, in the same time."""


class ClusterBySession:
    """The pyarrow engine: a bucket pass, then a pass that sorts bucket by bucket."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._budget = Budget.of(config.memory_gb)

    def run(self, table: Table, folder: Path, progress: Progress = silent) -> Table:
        """Cluster a table; a run that was killed goes on from what it had finished."""
        require_sessions(table.schema, "cluster_by_session", table.path)
        size = decoded_bytes(table)
        n_buckets = max(1, math.ceil(size / self._budget.bucket))
        plan = {"source": fingerprint(table), "config": asdict(self._config)}
        with Workspace(folder, plan) as workspace:
            spills = Spills(workspace.path / "spills", table.schema, n_buckets)
            spills.fill(table, self._budget.run, progress, f"bucketing {folder.name}")
            rows_per_stripe = self._budget.stripe_rows(size / max(1, table.num_rows))
            parts = Parts(
                workspace,
                table.schema,
                run_bytes=self._budget.run,
                rows_per_stripe=rows_per_stripe,
                compression_level=self._config.compression_level,
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
    """Cluster rows that are in buckets by session already, as log shards are; a file each.

    No session may be in two buckets. A bucket is iterated once, when its turn comes. With a
    `source`, which says what is in the buckets, a run that was killed goes on.
    """
    require_sessions(schema, "cluster_by_session", folder)
    budget = Budget.of(memory_gb)
    plan = {"source": source, "buckets": len(buckets), "schema": schema.to_json()}
    with Workspace(folder, plan, resume=bool(source)) as workspace:
        parts = Parts(
            workspace,
            schema,
            run_bytes=budget.run,
            rows_per_stripe=STRIPE_ROWS,
            compression_level=compression_level,
        )
        what = f"sorting {folder.name}"
        progress(what, 0, len(buckets))
        for index, bucket in enumerate(buckets):
            parts.write(Part(name=f"part-{index:05}", buckets=[bucket]))
            progress(what, index + 1, len(buckets))
        if not buckets:
            parts.write(Part(name="part-00000", buckets=[]))
        return parts.publish()


def _parts(spills: Spills, rows: int) -> Iterator[Part]:
    """Buckets put together, one after the other, to parts of at least `rows` rows."""
    number, first, before = 0, 0, Checksum()
    for index, bucket in enumerate(spills.sums):
        before += bucket
        if before.rows >= rows or index == len(spills.sums) - 1:
            yield Part(
                name=f"part-{number:05}",
                buckets=[_Lazy(spills, i) for i in range(first, index + 1)],
                before=before,
            )
            number, first, before = number + 1, index + 1, Checksum()


@dataclass(frozen=True)
class _Lazy:
    """A bucket of spills, read when iterated."""

    spills: Spills
    index: int

    def __iter__(self) -> Iterator[Any]:
        return self.spills.bucket(self.index)


def build_cluster(config: ClusterConfig, context: Context) -> Etl:
    if config.engine == "spark":
        from recd_dedup.etl.spark import ClusterWithSpark

        return ClusterWithSpark(config.spark_master, config.memory_gb, config.compression_level)
    return ClusterBySession(config)
