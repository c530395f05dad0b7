"""Rows of a small schema, and folders put on a store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.storage.uri import Uri

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("d0", "d1"),
    sparse=tuple(SparseFeature(name=f"f{n}", num_ids=100) for n in range(6)),
)


def rows(count: int, seed: int = 0) -> pa.Table:
    made = {name: [float((i * 7 + seed) % 5) for i in range(count)] for name in ("d0", "d1")}
    made["label"] = [float(i % 2) for i in range(count)]
    for n in range(6):
        made[f"f{n}"] = [[(i * 3 + n + seed) % 100] * (1 + i % 3) for i in range(count)]
    return pa.table(made).select(SCHEMA.arrow().names)


def everything(table: Table) -> pa.Table:
    return pa.concat_tables(table.read(stripe) for stripe in table.stripes)


def put(folder: Path, target: Uri) -> None:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            (target / str(file.relative_to(folder))).write_bytes(file.read_bytes())
