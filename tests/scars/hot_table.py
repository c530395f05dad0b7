"""A table whose samples are distinguished by an id that no table looks up, and their hot share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recd_plugins.data.batch import Batch
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.slots import Context, Loader
from recd_scars.hot_batches import HotBatches

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("a",),
    sparse=(
        SparseFeature(name="row", num_ids=10_000),
        SparseFeature(name="heard", num_ids=20),
        SparseFeature(name="liked", num_ids=5),
    ),
)
FEATURES = {"songs": ("heard",), "artists": ("liked",)}


def heard(row: int) -> list[int]:
    return [(row * 7 + i) % 20 for i in range(1 + row % 2)]


def liked(row: int) -> list[int]:
    return [row % 5] if row % 3 else []


def write(folder: Path, num_rows: int) -> Table:
    rows = range(num_rows)
    with TableWriter(folder, SCHEMA, rows_per_stripe=16, stripes_per_file=3) as writer:
        writer.write(
            pa.table(
                {
                    "label": [row % 2 for row in rows],
                    "a": list(rows),
                    "row": [[row] for row in rows],
                    "heard": pa.array([heard(row) for row in rows], pa.list_(pa.int64())),
                    "liked": pa.array([liked(row) for row in rows], pa.list_(pa.int64())),
                }
            )
        )
    return Table.open(folder)


def plan_of(songs: Sequence[int], artists: Sequence[int]) -> TierPlan:
    return TierPlan(
        tables={
            "songs": TablePlan(table="songs", replicated=np.array(songs, np.int64)),
            "artists": TablePlan(table="artists", replicated=np.array(artists, np.int64)),
        },
        n_nodes=1,
        ranks_per_node=1,
    )


ALL = plan_of(range(20), range(5))
NONE = plan_of([], [])
SOME = plan_of(range(12), [1, 3])


def is_hot(row: int, plan: TierPlan) -> bool:
    songs, artists = (set(plan.tables[name].replicated.tolist()) for name in FEATURES)
    return songs.issuperset(heard(row)) and artists.issuperset(liked(row))


@dataclass
class Plans:
    """A planner, of which only the plan is asked."""

    tier_plan: TierPlan | None
    features_of: Mapping[str, Sequence[str]] = field(default_factory=lambda: FEATURES)
    group: None = None


def open_stage(
    table: Table,
    plans: Plans,
    *,
    rank: int = 0,
    world_size: int = 1,
    batch_size: int = 6,
    window: int = 4,
    transform: Any = None,
    **options: Any,
) -> HotBatches:
    reader = build_local_reader(LocalReaderConfig(**options), Context(seed=1))
    loader: Loader = reader.loader(
        table,
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        split="train",
        transform=transform,
    )
    return HotBatches(loader, plans, rank=rank, world_size=world_size, window=window)


def rows_of(batch: Batch) -> list[int]:
    """The row of each sample that is no padding, once every field was found to be that row's."""
    features, dedup = batch.features.to_dict(), batch.dedup
    if dedup is not None:
        features |= dedup.to_kjt().to_dict()
    lists = {
        key: [part.tolist() for part in one.values().split(one.lengths().tolist())]
        for key, one in features.items()
    }
    rows: list[int] = [row for (row,) in lists["row"]]
    assert lists["heard"] == [heard(row) for row in rows]
    assert lists["liked"] == [liked(row) for row in rows]
    assert batch.dense[:, 0].tolist() == rows
    assert batch.labels.tolist() == [row % 2 for row in rows]
    return [row for row, weight in zip(rows, batch.weights.tolist(), strict=True) if weight]


def saved(loader: Loader) -> dict[str, Any]:
    """The state as a checkpoint brings it back."""
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state
