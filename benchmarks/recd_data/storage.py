"""What logs and tables take on disk (O1, O2), and what clustering costs."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import ALLOCATOR, Figure, Limit, alternate
from benchmarks.limits import without_repeats
from benchmarks.recd_data.log_compression import compression
from benchmarks.recd_data.quotient import quotient
from benchmarks.wide_ids import with_wide_ids
from recd_dedup.etl.cluster import ClusterBySession, ClusterConfig
from recd_dedup.log.replay import Replay
from recd_dedup.log.shards import ZstdShardsConfig
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table

__all__ = ["clustering", "file_sizes", "logs"]


def file_sizes(by_time: Table, by_session: Table, left_out: Table, folder: Path) -> list[Figure]:
    """The clustered table, with all values in its files or with repeats `left_out`, against the
    same rows by time: well packed, with ids of 8 bytes, as others write them, and of 4."""
    ours, left, narrow = _size(by_session), _size(left_out), _strongly_packed(by_time)
    strong = _strongly_packed(with_wide_ids(by_time, folder))
    least = _without_repeats(by_session, ClusterConfig().compression_level)
    of = (
        "the clustered columns, each without the values that equal the row before's, packed as "
        f"ours: {_mb(least)}; which rows they are of and the footers are left out"
    )
    return [
        Figure(
            name="clustered vs time-ordered file size",
            value=strong / ours,
            unit="x smaller",
            baseline=1.0,
            target=3.71,
            limit=Limit(value=strong / least, of=of),
            note=f"time-ordered at zstd 3, 8 MiB pages, no dictionary, ids of 8 bytes: "
            f"{_mb(strong)}, {_mb(ours)}",
        ),
        Figure(
            name="clustered vs time-ordered file size, repeats left out",
            value=strong / left,
            unit="x smaller",
            baseline=1.0,
            limit=Limit(value=strong / least, of=of),
            note=f"{_mb(left)}: a null stands for each list that equals the row before's",
        ),
        Figure(
            name="clustered vs time-ordered file size, ids of 4 bytes in both",
            value=narrow / ours,
            unit="x smaller",
            baseline=1.0,
            limit=Limit(value=narrow / least, of=of),
            note=f"clustering alone: {_mb(narrow)}, {_mb(ours)}",
        ),
        Figure(
            name="clustered vs time-ordered file size, by time at zstd 1, 1 MiB pages",
            value=_size(by_time) / ours,
            unit="x smaller",
            baseline=1.0,
            limit=Limit(value=_size(by_time) / least, of=of),
            note=f"{_mb(_size(by_time))}, {_mb(ours)}",
        ),
    ]


def logs(by_time: Table) -> list[Figure]:
    """The table replayed as requests and events, in as many shards by either route."""
    replay = Replay(by_time.schema)
    by_session, by_message = (
        compression(replay.messages(by_time.each_read()), ZstdShardsConfig(route=route))
        for route in ("session", "message")
    )
    return [
        Figure(
            name="O1 shard compression",
            value=by_session.ratio / by_message.ratio,
            unit="x better",
            baseline=1.0,
            target=1.5,
            note=f"{by_session.ratio:.2f}x by session, {by_message.ratio:.2f}x by message hash; "
            f"{by_session.shards} shards of zstd 3 in 4 MiB blocks",
        )
    ]


def clustering(by_time: Table, folder: Path, rounds: int) -> list[Figure]:
    """Clustering with the default memory; each side reads and writes whole tables, which clustering
    verifies."""
    step, copied, clustered = ClusterBySession(ClusterConfig()), folder / "copy", folder / "again"
    sides: dict[str, Callable[[], object]] = {
        "copy": lambda: write_table(copied, by_time.schema, by_time.each_read()),
        "cluster": lambda: _anew(clustered, lambda: step.run(by_time, clustered)),
    }
    measured = alternate(sides, rounds, of="clustering")
    return [
        quotient(
            "clustering, time over reading and writing the same table unsorted",
            measured["cluster"],
            measured["copy"],
            target=3,
            at_most=True,
            limit=Limit(value=1.0, of="reading and writing the table; sorting it is left out"),
        ),
        Figure(
            name="clustering, peak memory",
            value=_peak_mb(by_time, folder / "peak"),
            unit="MB",
            target=1500,
            at_most=True,
            note=f"a process of its own, memory_gb {ClusterConfig().memory_gb:g}, default malloc",
        ),
    ]


def _anew(folder: Path, run: Callable[[], object]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    run()


def _peak_mb(table: Table, folder: Path) -> float:
    environment = {name: value for name, value in os.environ.items() if name not in ALLOCATOR}
    command = [sys.executable, "-m", "benchmarks.recd_data.peak", str(table.path), str(folder)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def _strongly_packed(table: Table) -> int:
    """Bytes of the same stripes at zstd 3 in pages of 8 MiB, without dictionaries."""
    total = 0
    for file in table.files:
        assert isinstance(file, Path)  # the benchmark wrote it
        packed = file.with_suffix(".strong")
        with pq.ParquetFile(file) as source:
            writer = pq.ParquetWriter(
                packed,
                source.schema_arrow,
                compression="zstd",
                compression_level=3,
                use_dictionary=False,
                data_page_size=8 << 20,
            )
            with writer:
                for group in range(source.num_row_groups):
                    rows = source.read_row_group(group)
                    writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        total += packed.stat().st_size
        packed.unlink()
    return total


def _without_repeats(table: Table, level: int) -> int:
    """Bytes of the columns alone, in the pages of our files, without values that the previous row
    has too."""
    total = 0
    arrow = table.schema.in_files()
    for name in arrow.names:
        sink = io.BytesIO()
        field = pa.schema([arrow.field(name)])
        options = {"compression": "zstd", "compression_level": level, "use_dictionary": False}
        with pq.ParquetWriter(sink, field, data_page_size=1 << 20, **options) as writer:
            for stripe in table.stripes:
                values = without_repeats(table.read(stripe, [name])[name].combine_chunks())
                values = values.cast(arrow.field(name).type)
                writer.write_table(pa.Table.from_arrays([values], schema=field))
        footer = pq.read_metadata(io.BytesIO(sink.getvalue()))
        groups = (footer.row_group(group) for group in range(footer.num_row_groups))
        total += sum(group.column(0).total_compressed_size for group in groups)
    return total


def _size(table: Table) -> int:
    return sum(file.stat().st_size for file in table.files)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
