"""The local reader against pyarrow alone on the same row groups, in one process.

    python -m benchmarks.reader [--quick] [--json]

pyarrow decodes the columns of each row group into Arrow arrays, on its threads, and drops
them; the reader makes shuffled batches (dense, KJT, labels, weights) of the same columns. Ids have
8 bytes in these files, as others write them; beside that, the same rows in files of ours.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Figure, Limit, Report, alternate, main, spread
from benchmarks.limits import copies, decoding
from benchmarks.wide_ids import with_wide_ids
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.slots import Context

TARGET = 0.85
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
    rows = 200_000 if quick else 400_000
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder:
        ours = write_table(Path(folder) / "ours", SCHEMA, chunks(rows))
        wide = with_wide_ids(ours, Path(folder) / "wide")
        return compare(wide, ours, rounds=3 if quick else 15)


def compare(wide: Table, ours: Table, rounds: int) -> Report:
    """Readers of both tables, beside pyarrow on the same row groups."""
    columns = [SCHEMA.label, *SCHEMA.dense, *SCHEMA.sparse_names]
    sides: dict[str, Callable[[], Any]] = {
        "pyarrow": decoding(wide, columns),
        "reader": epoch_of(wide, LocalReaderConfig()),
        "no prefetch": epoch_of(wide, LocalReaderConfig(prefetch=False)),
        "pyarrow, our files": decoding(ours, columns),
        "reader, our files": epoch_of(ours, LocalReaderConfig()),
        "a copy": copies(_numbers(wide, columns)),
    }
    measured = alternate(sides, rounds, of="reader")
    copied = statistics.median(one.cpu for one in measured.pop("a copy"))
    rate = {name: [one.result / one.wall for one in side] for name, side in measured.items()}
    cost = {name: [one.cpu / one.result * 1e6 for one in side] for name, side in measured.items()}

    def limit(by: str) -> Limit:
        """Of a share of pyarrow's rows/s on row groups of 8-byte ids: decoding by a side."""
        decoded = statistics.median(cost[by]) / 1e6 * wide.num_rows
        alone = statistics.median(one.wall for one in measured["pyarrow"])
        least = statistics.median(one.wall for one in measured[by])
        cores = len(os.sched_getaffinity(0))
        return Limit(
            value=alone / max(least, (decoded + copied) / cores),
            of="pyarrow's decoding and one copy of all numbers, where they fill all cores: "
            f"{decoded:.2f} and {copied:.2f} s of processor time; the shuffle is left out",
        )

    def share(name: str, target: float | None, note: str, by: str = "pyarrow") -> Figure:
        shares = [one / alone for one, alone in zip(rate[name], rate["pyarrow"], strict=True)]
        return Figure(
            name=f"{name}, share of pyarrow's rows/s",
            value=statistics.median(shares),
            unit="of 1",
            baseline=1.0,
            target=target,
            limit=limit(by),
            spread=spread(shares),
            note=note,
        )

    def costs(name: str, by: str) -> Figure:
        alone = statistics.median(cost[by])
        return Figure(
            name=f"{name}, CPU per million rows",
            value=statistics.median(cost[name]),
            unit="s",
            baseline=alone,
            at_most=True,
            limit=Limit(
                value=alone + copied / wide.num_rows * 1e6,
                of="pyarrow's decoding and one copy of all numbers; the shuffle is left out",
            ),
            spread=spread(cost[name]),
            note="what is left of the share where other work fills the cores",
        )

    def rows_a_second(name: str, by: str) -> Figure:
        return Figure(
            name=f"{name}, rows/s",
            value=statistics.median(rate[name]),
            unit="rows/s",
            baseline=statistics.median(rate[by]),
            spread=spread(rate[name]),
        )

    narrow = "pyarrow, our files"
    figures = [
        share("reader", TARGET, "one process, no workers, shuffled, as the trainer reads"),
        share("no prefetch", None, "the same, decoding only when a window is needed"),
        rows_a_second("reader", "pyarrow"),
        costs("reader", "pyarrow"),
        share("reader, our files", None, "ids of 4 bytes, beside pyarrow on those of 8", narrow),
        rows_a_second("reader, our files", narrow),
        costs("reader, our files", narrow),
    ]
    config = LocalReaderConfig()
    settings = {
        "rows": wide.num_rows,
        "stripes": len(wide.stripes),
        "sparse": f"{len(SCHEMA.sparse)} lists of 0 to {MAX_LENGTH} ids",
        "dense": len(SCHEMA.dense),
        "file_mb, ids of 8 bytes": _mb(wide),
        "file_mb, ours": _mb(ours),
        "files": "zstd 1, 1 MiB pages with checksums (which the reader checks), in the page cache",
        "batch_size": BATCH_SIZE,
        "window": config.window,
        "rounds": rounds,
        "pyarrow_threads": pa.cpu_count(),
    }
    return Report(figures=figures, settings=settings, seed=SEED)


def _mb(table: Table) -> float:
    return round(sum(file.stat().st_size for file in table.files) / 1e6, 1)


def _numbers(table: Table, columns: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """The numbers of all columns: ids of lists, and lengths, too."""
    found = []
    for file in table.files:
        for column in pq.read_table(file, columns=list(columns)).columns:
            for chunk in column.chunks:
                lists = pa.types.is_list(chunk.type)
                parts = (chunk.flatten(), chunk.value_lengths()) if lists else (chunk,)
                found += [part.to_numpy(zero_copy_only=False) for part in parts]
    return found


def epoch_of(table: Table, config: LocalReaderConfig) -> Callable[[], int]:
    reader = build_local_reader(config, Context(seed=SEED))
    loader = reader.loader(table, rank=0, world_size=1, batch_size=BATCH_SIZE, split="train")
    return lambda: sum(len(batch) for batch in loader)


def chunks(num_rows: int) -> Iterator[pa.Table]:
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
