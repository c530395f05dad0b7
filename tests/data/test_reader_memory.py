"""Rung 1 (values): the memory of batches that nobody holds is had again, and of others never."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from recd_plugins.data.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import write_table
from recd_plugins.slots import Context

ROWS, LENGTH, STRIPE, BATCH = 4096, 100, 512, 512
SCHEMA = Schema(dense=(), sparse=(SparseFeature(name="ids", num_ids=ROWS * LENGTH),))


def rows(first: int) -> pa.Table:
    count = np.arange(STRIPE)
    ids = np.arange(first * LENGTH, (first + STRIPE) * LENGTH)
    lists = pa.ListArray.from_arrays(np.arange(STRIPE + 1, dtype=np.int32) * LENGTH, ids)
    known = {"session_id": count, "timestamp": count, "label": count % 2}
    return pa.table(known | {"ids": lists})


def test_held_batches_stay_and_memory_of_others_comes_again(tmp_path) -> None:
    table = write_table(tmp_path / "table", SCHEMA, map(rows, range(0, ROWS, STRIPE)))
    reader = build_local_reader(LocalReaderConfig(window=1), Context(seed=0))
    loader = reader.loader(table, rank=0, world_size=1, batch_size=BATCH, split="train")
    held, places, seen = [], [], []
    for _ in range(3):
        for number, batch in enumerate(loader):
            values = batch.features.values()
            places.append(values.data_ptr())
            seen.append(values.clone())
            if number % 3 == 0:
                held.append((values[:7], seen[-1][:7]))
            del batch, values
    assert len(set(places)) < len(places)
    for epoch in range(3):
        ids = torch.cat(seen[epoch * ROWS // BATCH : (epoch + 1) * ROWS // BATCH])
        assert torch.equal(ids.sort().values, torch.arange(ROWS * LENGTH))
    assert all(torch.equal(kept, was) for kept, was in held)
    assert len({kept.data_ptr() for kept, _ in held}) == len(held)
