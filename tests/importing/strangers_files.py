"""Files as strangers write them: the same rows in every format, packed or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

PACKINGS = {"": None, ".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


def clicks(rows: int = 400, seed: int = 0) -> pa.Table:
    """Visits of users to a shop; a tenth of the prices is missing."""
    draw = np.random.default_rng(seed)
    items = draw.zipf(1.5, rows) % 60
    prices = np.round(items * 1.25 + 0.5, 2)
    return pa.table(
        {
            "visit": pa.array([f"v{one:04}" for one in np.sort(draw.integers(0, rows // 8, rows))]),
            "at": pa.array(1_700_000_000 + np.arange(rows) * 7),
            "clicked": pa.array((draw.random(rows) < 0.3).astype(np.int64)),
            "price": pa.array(prices, mask=draw.random(rows) < 0.1),
            "item_id": pa.array(items + 1_000_000),
            "brand": pa.array([f"brand {one % 9}" for one in items]),
        }
    )


def write(path: Path, table: pa.Table, packing: str | None = None, **options: Any) -> Path:
    """A file in the format that its name says, whatever it says of packing."""
    with pa.OSFile(str(path), "wb") as plain:
        file = pa.CompressedOutputStream(plain, packing) if packing else plain
        with file:
            if ".parquet" in path.name:
                pq.write_table(table, file, **options)
            elif ".jsonl" in path.name:
                for row in table.to_pylist():
                    file.write((json.dumps(row) + "\n").encode())
            else:
                delimiter = "\t" if ".tsv" in path.name else ","
                style = {"quoting_style": "needed", "delimiter": delimiter, **options}
                pyarrow.csv.write_csv(table, file, pyarrow.csv.WriteOptions(**style))
    return path


def text(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
