"""What the tests of etl steps share: small tables of sessions, and how to look at rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recd_dedup.hashing import mix
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter

SCHEMA = Schema(
    dense=("row",),
    sparse=(
        SparseFeature(name="history", num_ids=1_000, sequence=True),
        SparseFeature(name="user.tags", num_ids=50, kind="user"),
    ),
)
HUGE = (-(2**63), 2**63 - 1, -1, 0, 1, 2**62)
"""Session ids at the ends of 64 bits."""


def rows_of(sessions, timestamps, seed: int = 0) -> pa.Table:
    """Rows with random lists; `row` numbers them."""
    draw = np.random.default_rng(seed)
    n = len(sessions)

    def lists(num_ids: int) -> pa.Array:
        offsets = np.concatenate(([0], draw.integers(0, 9, n).cumsum())).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, draw.integers(0, num_ids, offsets[-1]))

    columns = {
        "session_id": pa.array(np.asarray(sessions, np.int64)),
        "timestamp": pa.array(np.asarray(timestamps, np.int64)),
        "label": pa.array(draw.integers(0, 2, n), pa.float32()),
        "row": pa.array(np.arange(n), pa.float32()),
        "history": lists(1_000),
        "user.tags": lists(50),
    }
    return pa.table(columns).cast(SCHEMA.arrow())


def mixed_rows(n: int = 500, seed: int = 0) -> pa.Table:
    """Sessions of all sizes, mixed; a tenth of the timestamps are late, and many are equal."""
    draw = np.random.default_rng(seed)
    sessions = draw.zipf(1.3, n) % 150 * 7_919 - 10**6
    sessions[draw.random(n) < 0.05] = draw.choice(HUGE)
    timestamps = np.arange(n) // 4 - np.where(draw.random(n) < 0.1, 50, 0)
    return rows_of(sessions, timestamps, seed)


def table_of(folder: Path, rows: pa.Table, schema: Schema = SCHEMA) -> Table:
    with TableWriter(folder, schema, rows_per_stripe=257, stripes_per_file=3) as writer:
        writer.write(rows)
    return Table.open(folder)


def read(table: Table) -> pa.Table:
    files = sorted(table.path.glob("*.parquet"))  # also those without rows
    rows = pa.concat_tables(pq.read_table(file) for file in files).combine_chunks()
    return rows.cast(table.schema.arrow())


def expected(rows: pa.Table) -> pa.Table:
    """The rows clustered, by Python's own stable sort."""
    hashes = mix(rows["session_id"].to_numpy()).tolist()
    times = rows["timestamp"].to_pylist()
    order = sorted(range(rows.num_rows), key=lambda row: (hashes[row], times[row]))
    return rows.take(pa.array(order, pa.int64())).combine_chunks()
