"""The local reader against pyarrow alone on the same row groups, in one process.

    python -m benchmarks.reader [--quick] [--json]

pyarrow decodes the columns of each row group into Arrow arrays, on its threads, and drops
them; the reader makes shuffled batches (dense, KJT, labels, weights) of the same columns.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Figure, Report, alternate, main, spread
from recd_plugins.data.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table, write_table
from recd_plugins.slots import Context

TARGET = 0.6
SEED = 0
BATCH_SIZE = 512
NUM_IDS = 1_000_000
MAX_LENGTH = 40
CHUNK_ROWS = 16_384

SCHEMA = Schema(
    dense=tuple(f"dense_{i}" for i in range(13)),
    sparse=tuple(SparseFeature(name=f"ids_{i}", num_ids=NUM_IDS) for i in range(10)),
)


def measure(quick: bool) -> Report:
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder:
        return compare(
            write_table(Path(folder) / "table", SCHEMA, _chunks(200_000 if quick else 400_000)),
            rounds=5 if quick else 15,
        )


def compare(table: Table, rounds: int) -> Report:
    sides = {
        "pyarrow": lambda: _read_with_pyarrow(table),
        "reader": _epoch_of(table, LocalReaderConfig()),
        "no prefetch": _epoch_of(table, LocalReaderConfig(prefetch=False)),
    }
    measured = alternate(sides, rounds)
    rate = {name: [one.result / one.wall for one in side] for name, side in measured.items()}
    cost = {name: [one.cpu / one.result * 1e6 for one in side] for name, side in measured.items()}
    median = {name: statistics.median(values) for name, values in rate.items()}

    def share(name: str, target: float | None, note: str) -> Figure:
        shares = [ours / alone for ours, alone in zip(rate[name], rate["pyarrow"], strict=True)]
        return Figure(
            name=f"{name}, share of pyarrow's rows/s",
            value=statistics.median(shares),
            unit="of 1",
            baseline=1.0,
            target=target,
            spread=spread(shares),
            note=note,
        )

    figures = [
        share("reader", TARGET, "one process, no workers, shuffled, as the trainer reads"),
        share("no prefetch", None, "the same, decoding only when a window is needed"),
        Figure(
            name="reader, rows/s",
            value=median["reader"],
            unit="rows/s",
            baseline=median["pyarrow"],
            spread=spread(rate["reader"]),
        ),
        Figure(
            name="reader, CPU per million rows",
            value=statistics.median(cost["reader"]),
            unit="s",
            baseline=statistics.median(cost["pyarrow"]),
            spread=spread(cost["reader"]),
            note="what is left of the share where other work fills the cores",
        ),
    ]
    config = LocalReaderConfig()
    settings = {
        "rows": table.num_rows,
        "stripes": len(table.stripes),
        "sparse": f"{len(SCHEMA.sparse)} lists of 0 to {MAX_LENGTH} ids",
        "dense": len(SCHEMA.dense),
        "file_mb": round(sum(file.stat().st_size for file in table.files) / 1e6, 1),
        "files": "zstd 1, 1 MiB pages with checksums (which the reader checks), in the page cache",
        "batch_size": BATCH_SIZE,
        "window": config.window,
        "rounds": rounds,
        "pyarrow_threads": pa.cpu_count(),
    }
    return Report(figures=figures, settings=settings, seed=SEED)


def _read_with_pyarrow(table: Table) -> int:
    columns = [SCHEMA.label, *SCHEMA.dense, *SCHEMA.sparse_names]
    rows = 0
    for file in table.files:
        with pq.ParquetFile(file) as opened:
            for group in range(opened.num_row_groups):
                rows += opened.read_row_group(group, columns=columns).num_rows
    return rows


def _epoch_of(table: Table, config: LocalReaderConfig) -> Callable[[], int]:
    reader = build_local_reader(config, Context(seed=SEED))
    loader = reader.loader(table, rank=0, world_size=1, batch_size=BATCH_SIZE, split="train")
    return lambda: sum(len(batch) for batch in loader)


def _chunks(num_rows: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(SEED)
    for first in range(0, num_rows, CHUNK_ROWS):
        rows = min(CHUNK_ROWS, num_rows - first)
        columns: dict[str, Any] = {
            "session_id": np.arange(first, first + rows) // 16,
            "timestamp": np.arange(first, first + rows),
            "label": random.integers(0, 2, rows),
        }
        columns |= {name: random.random(rows, dtype=np.float32) for name in SCHEMA.dense}
        yield pa.table(columns | {name: _lists(random, rows) for name in SCHEMA.sparse_names})


def _lists(random: np.random.Generator, rows: int) -> pa.ListArray:
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(random.integers(0, MAX_LENGTH + 1, rows), out=offsets[1:])
    return pa.ListArray.from_arrays(offsets, random.integers(0, NUM_IDS, offsets[-1]))


if __name__ == "__main__":
    main("reader", measure)
