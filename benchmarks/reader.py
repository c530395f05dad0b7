"""The local reader against pyarrow alone on the same row groups, in one process.

    python -m benchmarks.reader [--quick] [--json]

pyarrow decodes the columns of each row group into Arrow arrays, on its threads, and drops
them; the reader makes shuffled batches (dense, KJT, labels, weights) of the same columns.
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
from recd_plugins.data.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table, write_table
from recd_plugins.slots import Context

TARGET = 0.75
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
            write_table(Path(folder) / "table", SCHEMA, chunks(200_000 if quick else 400_000)),
            rounds=3 if quick else 15,
        )


def compare(table: Table, rounds: int) -> Report:
    columns = [SCHEMA.label, *SCHEMA.dense, *SCHEMA.sparse_names]
    sides: dict[str, Callable[[], Any]] = {
        "pyarrow": decoding(table, columns),
        "reader": epoch_of(table, LocalReaderConfig()),
        "no prefetch": epoch_of(table, LocalReaderConfig(prefetch=False)),
        "a copy": copies(_numbers(table, columns)),
    }
    measured = alternate(sides, rounds, of="reader")
    copied = statistics.median(one.cpu for one in measured.pop("a copy"))
    rate = {name: [one.result / one.wall for one in side] for name, side in measured.items()}
    cost = {name: [one.cpu / one.result * 1e6 for one in side] for name, side in measured.items()}
    decoded = [statistics.median(cost["pyarrow"]) / 1e6 * table.num_rows, copied]
    cores = len(os.sched_getaffinity(0))
    alone = statistics.median(one.wall for one in measured["pyarrow"])
    limit = Limit(
        value=alone / max(alone, sum(decoded) / cores),
        of="pyarrow's decoding and one copy of all numbers, where they fill all cores: "
        f"{decoded[0]:.2f} and {decoded[1]:.2f} s of processor time; the shuffle is left out",
    )
    median = {name: statistics.median(values) for name, values in rate.items()}

    def share(name: str, target: float | None, note: str) -> Figure:
        shares = [ours / alone for ours, alone in zip(rate[name], rate["pyarrow"], strict=True)]
        return Figure(
            name=f"{name}, share of pyarrow's rows/s",
            value=statistics.median(shares),
            unit="of 1",
            baseline=1.0,
            target=target,
            limit=limit,
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
            at_most=True,
            limit=Limit(
                value=sum(decoded) / table.num_rows * 1e6,
                of="pyarrow's decoding and one copy of all numbers; the shuffle is left out",
            ),
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
