"""The PySpark engine of `cluster_by_session`: the same rows in the same order as pyarrow's.

Spark hashes, shuffles by ranges of hashes and sorts. Its files are then rewritten as a table, with
the same check. For a table that is too large for one machine, point `spark_master` at a cluster
that sees the same folders.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from recd_dedup.etl.checksum import Checksum, checksum
from recd_dedup.etl.parts import (
    PART_STRIPES,
    Budget,
    FilePart,
    Parts,
    Workspace,
    fingerprint,
)
from recd_dedup.etl.scan import decoded_bytes, require_sessions, scan
from recd_dedup.hashing import MULTIPLIERS, SHIFTS
from recd_plugins.api import CapabilityError, DataError
from recd_plugins.api.data import Progress, Schema, Table, silent

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from recd_dedup.etl.cluster import ClusterConfig

__all__ = ["ClusterWithSpark", "check_that_files_are_rows", "check_that_it_listens"]

STANDALONE = "spark://"
LISTENS = 5.0
"""Seconds within which a master must accept a connection."""
START, LOOK = 300.0, 0.5
"""Seconds within which a worker of a cluster must take a job, and seconds between two looks."""
GROUP = "recd cluster_by_session"
MEND = (
    "Correct that: all of Spark's processes read and write there, also on a cluster. Or take "
    "engine: pyarrow."
)
CURE = "Name a master that is there, as local[2] or spark://HOST:7077, or take engine: pyarrow."


class ClusterWithSpark:
    """The Spark engine: a Spark pass replaces the bucket pass, and its files become the parts."""

    def __init__(self, config: ClusterConfig) -> None:
        _require_spark()
        self._config = config
        self._budget = Budget.of(config.memory_gb)

    def run(self, table: Table, folder: Path, progress: Progress = silent) -> Table:
        """Cluster a table; if a run was killed, the next one goes on from what it had finished."""
        require_sessions(table.schema, "cluster_by_session", table.path)
        check_that_files_are_rows(table)
        stripe_rows = self._budget.stripe_rows(decoded_bytes(table) / max(1, table.num_rows))
        n_parts = max(1, math.ceil(table.num_rows / (stripe_rows * PART_STRIPES)))
        leave_out = self._config.leave_out_repeats
        plan = {
            "source": fingerprint(table),
            "engine": "spark",
            "parts": n_parts,
            "leave_out_repeats": leave_out,
        }
        with Workspace(folder, plan) as workspace:
            by_spark = workspace.path / "spark"
            if not (by_spark / "_SUCCESS").exists():
                progress(f"Spark: clustering {folder.name}", 0, table.num_rows)
                self._cluster(table, n_parts, by_spark)
                progress(f"Spark: clustering {folder.name}", table.num_rows, table.num_rows)
            parts = Parts(
                workspace,
                table.schema,
                band_bytes=self._budget.band,
                rows_per_stripe=stripe_rows,
                compression_level=self._config.compression_level,
                leave_out_repeats=leave_out,
            )
            after, what = Checksum(), f"writing {folder.name}"
            progress(what, 0, table.num_rows)
            # Spark numbers its files by range of hashes, and writes none for a range without rows.
            for index, file in enumerate(sorted(by_spark.glob("part-*.parquet"))):
                rows = scan(Table.open(file, table.schema), self._budget.band // 4)
                name = f"part-{index:05}"
                after += parts.write(FilePart(name=name, buckets=[rows], in_order=True))
                progress(what, after.rows, table.num_rows)
            before = checksum(scan(table, self._budget.band // 4))
            if before != after:
                raise DataError(
                    f"{folder}: Spark made {after} of the source's {before}. Nothing was "
                    "published. If its workers are other machines, they must see this folder, and "
                    f"{table.path}, as this one does. Run the step again, or take engine: pyarrow."
                )
            return parts.publish()

    def _cluster(self, table: Table, n_parts: int, folder: Path) -> None:
        with (
            _session(self._config.spark_master, self._config.memory_gb) as session,
            _named(f"Spark could not cluster {table.path} into {folder}", MEND),
            _given_a_worker(session),
        ):
            rows = _read(session, table)
            by = ["_hash", *(["_time"] if table.schema.timestamp else []), "_file", "_row"]
            rows = rows.repartitionByRange(n_parts, "_hash").sortWithinPartitions(*by)
            rows = rows.drop("_hash", "_time", "_file", "_row")
            rows.write.mode("overwrite").option("compression", "zstd").parquet(str(folder))


def _require_spark() -> None:
    """Raise `CapabilityError` unless pyspark and Java are installed."""
    who = "etl: cluster_by_session with engine: spark needs"
    if importlib.util.find_spec("pyspark") is None:
        raise CapabilityError(
            f"{who} the package 'pyspark', which is not installed. Install it with pip (about "
            "500 MB on disk), or take engine: pyarrow."
        )
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise CapabilityError(
            f"{who} Java 17 or later, but there is no 'java' on PATH nor under JAVA_HOME. "
            "Install one, or take engine: pyarrow."
        )


def check_that_files_are_rows(table: Table) -> None:
    """Raise `DataError` unless the rows of a table are exactly those in its files: Spark reads the
    files."""
    stored = sum(table.opened(file).metadata.num_rows for file in table.files)
    beside = {
        "a part of their rows (where, sessions_share)": stored != table.num_rows,
        "features of other tables (join)": bool(table.joins),
        "columns that some files lack (absent)": bool(table.absent),
        "lists that its files leave out (leave_out_repeats)": any(
            table.opened(file).left_out for file in table.files
        ),
        "columns of folders' names": any(
            not {*facts.partitions}.isdisjoint(table.schema.columns)
            for facts in table.facts.values()
        ),
    }
    taken = [what for what, one in beside.items() if one]
    if taken:
        raise DataError(
            f"etl: cluster_by_session with engine: spark reads the files of {table.path} as they "
            f"are, and the dataset takes {' and '.join(taken)}. Take engine: pyarrow, which reads "
            "the rows that the dataset has."
        )


@contextmanager
def _session(master: str, memory_gb: float) -> Iterator[SparkSession]:
    """A new session, in the Spark that runs in this process, or else in a new one."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    with _named(
        f"Spark does not start with spark_master: {master}", f"What it printed says more. {CURE}"
    ):
        if running is None:
            check_that_it_listens(master)
        session = running or (
            SparkSession.builder.master(master)
            .appName("cluster_by_session")
            .config("spark.driver.memory", f"{max(1024, round(memory_gb * 1000))}m")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
    try:
        own = session.newSession()
        own.sparkContext.setLogLevel("ERROR")
        own.conf.set("spark.sql.ansi.enabled", "false")  # the hash's products wrap around
        yield own
    finally:
        if running is None:
            session.stop()


def check_that_it_listens(master: str) -> None:
    """Raise `DataError` if no master of a standalone cluster listens: Spark itself would try for a
    minute, and then end the program."""
    if not master.startswith(STANDALONE):
        return
    refused = []
    for place in master.removeprefix(STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=LISTENS).close()
        except ValueError:
            refused.append(f"{place!r} is no HOST:PORT")
        except (OSError, OverflowError) as error:
            refused.append(f"{place}: {error}")
        else:
            return
    raise DataError(
        f"etl: cluster_by_session: Spark does not start with spark_master: {master} "
        f"({'; '.join(refused)}). {CURE}"
    )


@contextmanager
def _given_a_worker(session: SparkSession) -> Iterator[None]:
    """Within this context, a job ends with `DataError` if a cluster has no worker for it: Spark
    itself would wait, and only say so in its log."""
    from py4j.protocol import Py4JError

    context = session.sparkContext
    if context.master.startswith("local"):
        yield
        return
    done, given_up = threading.Event(), threading.Event()
    context.setJobGroup(GROUP, "cluster_by_session")

    def watch() -> None:
        tracker, left = context.statusTracker(), math.ceil(START / LOOK)
        with suppress(Py4JError):  # Spark has ended, and the job's own error reports that
            while left:
                if done.wait(LOOK):
                    return
                stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
                begun = [one.numActiveTasks + one.numCompletedTasks for one in stages if one]
                if any(begun):
                    return
                left -= len(begun) > 0  # no job waits for a worker before it has a stage
            given_up.set()
            context.cancelJobGroup(GROUP)

    watching = threading.Thread(target=watch, daemon=True, name="spark-workers")
    watching.start()
    try:
        yield
    except Exception as error:
        if not given_up.is_set():
            raise
        raise DataError(
            f"etl: cluster_by_session: no worker of {context.master} took the job within {START:g} "
            "s. Its page lists the workers and their other jobs: start some, or take engine: "
            "pyarrow."
        ) from error
    finally:
        done.set()
        watching.join()


@contextmanager
def _named(what: str, cure: str) -> Iterator[None]:
    """Within this context, an error of Spark becomes a `DataError` that gives its cause in one
    line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise DataError(f"etl: cluster_by_session: {what} ({_cause(error)}). {cure}") from error


def _cause(error: Exception) -> str:
    """The first cause in an error of Spark, in one line, without Java's stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (causes or lines or [type(error).__name__])[0].rstrip(".")


def _read(session: SparkSession, table: Table) -> DataFrame:
    """The table's columns in our types, with the columns by which rows are sorted."""
    from pyspark.sql import functions as spark

    schema = table.schema
    columns = [spark.col(f"`{name}`").cast(kind).alias(name) for name, kind in _types(schema)]
    keys = [
        _hash(spark.col(f"`{schema.session_id}`").cast("bigint")).alias("_hash"),
        spark.col("_metadata.file_name").alias("_file"),
        spark.col("_metadata.row_index").alias("_row"),
    ]
    if schema.timestamp is not None:
        keys.append(spark.col(f"`{schema.timestamp}`").cast("bigint").alias("_time"))
    files = [str(file) for file in table.files] or [str(table.path)]
    return session.read.parquet(*files).select(*columns, *keys)


def _types(schema: Schema) -> Iterator[tuple[str, str]]:
    for name in schema.columns:
        if name in schema.sparse_names:
            yield name, "array<bigint>"
        elif name in schema.weights_names or schema.width(name) is not None:
            yield name, "array<float>"
        else:
            keys = (schema.session_id, schema.timestamp)
            yield name, "bigint" if name in keys else "float"


def _hash(x: Column) -> Column:
    """`mix` in Spark's signed numbers; the top bit is flipped, so that the order is the same."""
    from pyspark.sql import functions as spark

    for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=False):
        x = x.bitwiseXOR(spark.shiftrightunsigned(x, shift))
        x = x * spark.lit(multiplier - (1 << 64))
    x = x.bitwiseXOR(spark.shiftrightunsigned(x, SHIFTS[-1]))
    return x.bitwiseXOR(spark.lit(-(1 << 63)))
