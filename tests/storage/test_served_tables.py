"""Rung 3: a worker joins side tables and chooses rows as a rank does, on disk and on a store."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored import put

from benchmarks.s3_endpoint import seeded
from recd_dsi.service.calls import Refused
from recd_dsi.service.credentials import NO_CREDENTIALS
from recd_dsi.service.fleet import Fleet
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.worker import Worker, WorkerOptions
from recd_plugins.data.batch import Batch
from recd_plugins.registry.delivery import Delivery
from recd_plugins.stack import Stack, load
from recd_plugins.storage.uri import Location, location_of
from recd_plugins.testing.resume import assert_same_batch

ROWS, USERS = 1_200, 90
SERVICE = {"use": "service", "workers": 1, "when_none_answers": "fail", "patience": 120}


def side(last: int) -> pa.Table:
    """Features of users, but for every fifth, in no order."""
    users = [n for n in np.random.default_rng(1).permutation(USERS).tolist() if n % 5]
    beta = [[n, last][: 1 + n % 2] for n in users]
    return pa.table({"user": users, "beta": beta, "age": [n / 2 for n in users]})


def write(folder: Path) -> None:
    """Rows of sessions of three, each of a user or of none, and the side table."""
    (folder / "rows").mkdir(parents=True)
    of_session = np.random.default_rng(0).integers(0, USERS, ROWS // 3)
    users = np.repeat(of_session, 3).tolist()
    rows = pa.table(
        {
            "session": np.arange(ROWS) // 3,
            "user": [None if n % 11 == 0 else n for n in users],
            "country": [("DE", "FR", None)[n % 3] for n in users],
            "label": np.arange(ROWS) % 2.0,
            "d": np.arange(float(ROWS)),
            "ids": [[n % 7] * (n % 3) for n in range(ROWS)],
        }
    )
    for part in range(2):
        half = rows.slice(part * ROWS // 2, ROWS // 2)
        pq.write_table(half, folder / "rows" / f"part-{part}.parquet", row_group_size=100)
    pq.write_table(side(1), folder / "beta.parquet", row_group_size=20)


def stack_of(lies: Location, folder: Path, reader: dict[str, Any]) -> Stack:
    join = {
        "table": str(lies / "beta.parquet"),
        "key": "user",
        "sparse": [{"name": "beta", "num_ids": 5_000}],
        "dense": [{"name": "age", "nulls": {"value": -1}}],
    }
    dataset = {
        "use": "parquet",
        "train": str(lies / "rows"),
        "test": str(lies / "rows"),
        "schema": {
            "session_id": "session",
            "timestamp": None,
            "dense": ["d"],
            "sparse": [{"name": "ids", "num_ids": 1_000}],
        },
        "where": 'country != "FR" and d >= 20',
        "sessions_share": 0.8,
        "join": [join],
    }
    return load(
        {
            "plugins": ["recd_dedup", "recd_dsi"],
            "folder": str(folder),
            "dataset": dataset,
            "dedup": {"use": "exact", "groups": [["beta"]]},
            "preprocess": [{"use": "sigrid_hash", "features": ["beta"], "modulo": 97}],
            "reader": reader,
            "train": {"batch_size": 32, "device": "cpu"},
        }
    )


def served(stack: Stack, loader: ServiceLoader) -> list[Batch]:
    """An epoch, by a worker to which the registry has travelled."""
    worker = Worker(Delivery.from_text(stack.delivery().text()), WorkerOptions())
    Thread(target=worker.serve, daemon=True).start()
    fleet = Fleet(NO_CREDENTIALS, 1)
    fleet.set_workers({0: worker.address})
    loader.fleet = lambda: fleet
    try:
        with closing(loader):
            return [*loader]
    finally:
        fleet.close()
        worker.stop()


@pytest.mark.parametrize("place", ["disk", "s3://tables"])
def test_side_tables_and_selections_are_the_local_readers(
    store: Any, tmp_path: Path, place: str
) -> None:
    write(tmp_path / "tables")
    theirs = [*stack_of(tmp_path / "tables", tmp_path / "here", {"use": "local"}).loader(0, 1)]
    lies: Location = tmp_path / "tables"
    if place != "disk":
        lies = location_of(f"{place}/{uuid.uuid4().hex}")
        put(tmp_path / "tables", lies)
        store.faults = seeded(5, 0.1, ("503", "cut", "half"), most=6)
    stack = stack_of(lies, tmp_path / "there", SERVICE)
    loader = stack.loader(0, 1)
    assert isinstance(loader, ServiceLoader)
    ours = served(stack, loader)
    assert len(ours) == len(theirs) > 5
    for left, right in zip(theirs, ours, strict=True):
        assert_same_batch(left, right)
        assert left.dedup.kjt.values().numel() > 1
        assert bool((left.dense == -1).any() & (left.dense[:, 1] > 0).any())
    # Of a side table that was written anew, rows would have other features.
    with pa.BufferOutputStream() as sink:
        pq.write_table(side(2), sink)
        (lies / "beta.parquet").write_bytes(sink.getvalue().to_pybytes())
    with pytest.raises(Refused, match=r"but was asked for .*Start workers of the registry"):
        served(stack, loader)
