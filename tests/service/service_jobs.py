"""One table, and the registries over it whose batches workers make."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recd_plugins.data.schema import Label, Schema, SparseFeature, Vector
from recd_plugins.stack import Stack, load
from recd_plugins.testing.batches import random_table

ROWS = 1500
SCHEMA = Schema(
    labels=(Label(name="label"), Label(name="second")),
    sample_weight="counts",
    dense=("a", "b"),
    vectors=(Vector(name="b", width=3),),
    sparse=(
        SparseFeature(name="item", num_ids=10_000),
        SparseFeature(name="history", num_ids=500, kind="user", sequence=True),
        SparseFeature(name="times", num_ids=500, kind="user", sequence=True),
        SparseFeature(name="scored", num_ids=300, scored=True),
    ),
)
STEPS = [
    {"use": "sigrid_hash", "features": ["item"], "modulo": 97},
    {"use": "first_x", "features": ["history"], "n": 3},
    {"use": "map_id", "features": ["times"], "ids": {3: 400, 4: 2}, "other": 9},
]
GROUPS = [["history", "times"]]
KINDS: dict[str, dict[str, Any]] = {
    "kjt": {"preprocess": STEPS},
    "ikjt": {"dedup": {"use": "exact", "groups": GROUPS}, "preprocess": STEPS[:1]},
    "partial": {"dedup": {"use": "partial", "groups": [["history"]]}},
}


def write_tables(folder: Path) -> Path:
    """The splits under a folder."""
    random_table(folder / "train", SCHEMA, ROWS, rows_per_stripe=100, row="item")
    random_table(folder / "test", SCHEMA, 130, rows_per_stripe=50, seed=1, row="item")
    return folder


def stack_of(
    tables: Path,
    reader: dict[str, Any],
    kind: str = "kjt",
    plugins: Sequence[str] = (),
    **train: Any,
) -> Stack:
    """A stack over these tables."""
    return load(
        {
            "plugins": ["recd_dedup", "recd_dsi", *plugins],
            "folder": str(tables / "made"),
            "dataset": {
                "use": "parquet",
                "train": str(tables / "train"),
                "test": str(tables / "test"),
            },
            "reader": reader,
            "train": {"batch_size": 32, "seed": 3, "device": "cpu", **train},
            **KINDS[kind],
        }
    )


def until(true: Callable[[], bool], seconds: float = 240.0) -> None:
    """Wait for it; an error where it takes that long."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def children() -> set[int]:
    """The processes that this one started by multiprocessing."""
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}
