"""A step of scored ids against the same ids without weights, plain and on unique samples.

    python -m benchmarks.honesty.scored_ids [--quick] [--json]

Histories and bags of sessions of eight samples; sequence_dlrm sums them, by weight or not. All
sides take turns on two gloo ranks, reading included.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Figure, Report, main, spread
from benchmarks.honesty.step_time import on_rank
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.testing.gloo import GlooPool

__all__ = ["measure", "sides", "table_of"]

AT_MOST = 1.3
SEED = 0
S, LENGTH, NUM_IDS = 8, 20, 20_000
GROUPS = [["history", "brands"], ["topics"]]
NAMES = ("history", "brands", "topics", "item")


def schema(scored: bool) -> Schema:
    features = [
        SparseFeature(name=name, num_ids=NUM_IDS, scored=scored, sequence=name == "history")
        for name in NAMES
    ]
    return Schema(timestamp=None, dense=("price",), sparse=tuple(features))


def table_of(folder: Path, samples: int, scored: bool) -> Table:
    """A table of the same ids, with or without weights."""
    draw = np.random.default_rng(SEED)
    columns: dict[str, Any] = {
        "session_id": np.arange(samples) // S,
        "label": draw.integers(0, 2, samples).astype(np.float32),
        "price": draw.normal(size=samples).astype(np.float32),
    }
    for name in NAMES:
        stays, length = name != "item", LENGTH if name != "item" else 1
        ids = draw.integers(0, NUM_IDS, (samples // S if stays else samples, length))
        weights = draw.random(ids.shape, np.float32)
        every = [one.repeat(S, 0) if stays else one for one in (ids, weights)]
        columns[name] = every[0].tolist()
        if scored:
            columns[f"{name}_weights"] = every[1].tolist()
    arrow = schema(scored).arrow()
    chunk = pa.table({name: columns[name] for name in arrow.names}, schema=arrow)
    return write_table(folder, schema(scored), [chunk])


def sides(folder: Path, samples: int) -> dict[str, dict[str, Any]]:
    """Registries that differ only in weights and deduplication."""
    found = {}
    for ids, scored in (("ids", False), ("scored ids", True)):
        path = str(table_of(folder / ids, samples, scored).path)
        for how, dedup in (
            ("plain", {}),
            ("unique", {"dedup": {"use": "exact", "groups": GROUPS}}),
        ):
            found[f"{ids}, {how}"] = {
                "plugins": ["recd_dlrm", "recd_dedup"],
                "dataset": {"use": "parquet", "train": path, "test": path},
                "reader": {"use": "local", "sessions": "whole"},
                "model": {"use": "sequence_dlrm", "embedding_dim": 32, "bottom": [64], "top": [64]},
                "pooling": {"history": "sum"},
                "folder": str(folder),
                "train": {"batch_size": 512, "device": "cpu", "ranks": 2, "threads": 1},
                **dedup,
            }
    return found


def measure(quick: bool) -> Report:
    rounds, steps, samples = (3, 3, 8_192) if quick else (9, 6, 16_384)
    with tempfile.TemporaryDirectory() as folder:
        registries = sides(Path(folder), samples)
        seconds = GlooPool(deadline=600).run(on_rank, registries, rounds, steps)[0]["seconds"]
    figures = []
    for how in ("plain", "unique"):
        pairs = zip(seconds[f"scored ids, {how}"], seconds[f"ids, {how}"], strict=True)
        ratios = [scored / ids for scored, ids in pairs]
        times = [1e3 * statistics.median(seconds[f"{ids}, {how}"]) for ids in ("scored ids", "ids")]
        figures.append(
            Figure(
                name=f"a step of scored ids against unscored, {how}",
                value=statistics.median(ratios),
                unit="times as long",
                baseline=1.0,
                target=AT_MOST,
                at_most=True,
                spread=spread(ratios),
                note=f"{times[0]:.1f} ms against {times[1]:.1f} ms",
            )
        )
    settings = {
        "table": f"{samples} samples, sessions of {S}, three lists of {LENGTH} ids and an item",
        "model": "sequence_dlrm, D 32, a history summed, three bags; 512 samples a rank",
        "ranks": "2 gloo ranks of one thread, reading included",
        "turns": f"{rounds} of {steps} steps",
    }
    return Report(figures=figures, settings=settings, seed=SEED)


if __name__ == "__main__":
    main("honesty.scored_ids", measure)
