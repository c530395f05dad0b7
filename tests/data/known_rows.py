"""A table whose every row is known by its id, and what a loader makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import torch

from recd_plugins.data.batch import Batch
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.slots import Context

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("a", "b"),
    sparse=(SparseFeature(name="row", num_ids=10_000), SparseFeature(name="history", num_ids=50)),
)
ROWS = 103


def history(row: int) -> list[int]:
    return [(row + i) % 50 for i in range(row % 4)]


def write(folder: Path, num_rows: int, rows_per_stripe: int = 8) -> Table:
    """Row r has id r, label r % 2, dense (r, -r) and a history of r % 4 ids."""
    rows = range(num_rows)
    with TableWriter(folder, SCHEMA, rows_per_stripe=rows_per_stripe, stripes_per_file=3) as writer:
        writer.write(
            pa.table(
                {
                    "label": [row % 2 for row in rows],
                    "a": list(rows),
                    "b": [-row for row in rows],
                    "row": [[row] for row in rows],
                    "history": pa.array([history(row) for row in rows], pa.list_(pa.int64())),
                }
            )
        )
    return Table.open(folder)


def open_loader(
    table, *, rank=0, world_size=1, batch_size=10, split="train", seed=0, transform=None, **options
):
    reader = build_local_reader(LocalReaderConfig(**options), Context(seed=seed))
    return reader.loader(
        table,
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        split=split,
        transform=transform,
    )


def ids(batch: Batch) -> list[tuple[int, int]]:
    """(row, weight) of each sample, once each sample has been found to be that row."""
    lists = {
        key: [part.tolist() for part in one.values().split(one.lengths().tolist())]
        for key, one in batch.features.to_dict().items()
    }
    rows = [row for (row,) in lists["row"]]
    assert lists["history"] == [history(row) for row in rows]
    assert batch.labels.tolist() == [row % 2 for row in rows]
    assert batch.dense.tolist() == [[row, -row] for row in rows]
    assert batch.dense.dtype == batch.labels.dtype == batch.weights.dtype == torch.float32
    return list(zip(rows, map(int, batch.weights.tolist()), strict=True))


def epoch(loader) -> list[list[tuple[int, int]]]:
    return [ids(batch) for batch in loader]


def saved(loader) -> dict:
    """The state as a checkpoint brings it back."""
    return json.loads(json.dumps(loader.state_dict()))
