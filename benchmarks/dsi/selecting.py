"""A filter of a table that is sorted by its column: bytes that an epoch reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import Figure
from recd_plugins.data.parquet_tables import ParquetConfig, build_parquet
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.slots import Context

__all__ = ["selecting"]

SCHEMA = Schema(session_id=None, sparse=(SparseFeature(name="ids", num_ids=10**6),))


def selecting(
    folder: Path, *, rows: int = 1_000_000, stripes: int = 100, share: float = 0.05
) -> Figure:
    """All that is read is counted: footers, the rows that are counted beforehand, batches."""
    draw, each = np.random.default_rng(0), rows // stripes
    with TableWriter(folder / "table", SCHEMA, rows_per_stripe=each) as writer:
        for first in range(0, rows, each):
            ids = draw.integers(0, 10**6, 20 * each)
            bounds = pa.array(20 * np.arange(each + 1), pa.int32())
            writer.write(
                pa.table(
                    {
                        "timestamp": np.arange(first, first + each),
                        "label": np.zeros(each, np.float32),
                        "ids": pa.ListArray.from_arrays(bounds, pa.array(ids)),
                    }
                )
            )
    first = round(rows * 0.61234)
    where = f"{first} <= timestamp < {first + round(rows * share)}"
    _epoch(folder / "warm", folder / "table", where)  # imports read too
    (whole, all_rows), (part, some) = (
        _epoch(folder / "cold", folder / "table", asked) for asked in (None, where)
    )
    if (all_rows, some) != (rows, round(rows * share)):
        raise AssertionError(f"an epoch had {all_rows} and {some} rows")
    return Figure(
        name="a filter that keeps 5% of sorted rows",
        value=whole / part,
        unit="x fewer bytes",
        baseline=1.0,
        target=10,
        note=f"{whole:,} and {part:,} bytes of an epoch, footers and counting included; {rows:,} "
        f"rows in {stripes} stripes",
    )


def _epoch(known: Path, table: Path, where: str | None) -> tuple[int, int]:
    """Bytes that the process reads for an epoch, and the rows of it."""
    before = _bytes_read()
    config = ParquetConfig(train=table, test=table, where=where)
    opened = build_parquet(config, Context(folder=known)).prepare(known).train
    loader = build_local_reader(LocalReaderConfig(tail="pad"), Context()).loader(
        opened, rank=0, world_size=1, batch_size=1000, split="train"
    )
    rows = sum(int(batch.weights.sum()) for batch in loader)
    return _bytes_read() - before, rows


def _bytes_read() -> int:
    """By system calls, whatever cache the bytes came from."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))
