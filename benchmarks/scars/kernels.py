"""Processor time of what coalescing adds to a step, against what there was before."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.harness import Figure, Round, alternate, spread
from benchmarks.scars.tables import Law
from recd_plugins.planning.tier_plan import TablePlan, TierPlan
from recd_plugins.sparse.rows.coalesce import coalesce
from recd_plugins.stack import load
from recd_scars.hot_batches.hot_rows import HotRows

__all__ = ["classifying", "coalescing"]

CRITEO_LIKE = {"use": "random", "lookups": 1, "num_ids": [100_000] * 26}
CACHED = 20_000
"""Rows of each table; they lie anywhere in it."""


def coalescing(num_rows: int, count: int, rounds: int) -> Figure:
    """Different ids and inverse of Zipf ids that lie anywhere in the table."""
    drawn = Law("Zipf 1.05", num_rows, 1).draw(count, seed=0)["table"]
    ids = torch.randperm(num_rows, generator=torch.Generator().manual_seed(1))[drawn]
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: coalesce(ids),
        "sorted": lambda: torch.unique(ids, return_inverse=True),
        "unsorted": lambda: torch.unique(ids, sorted=False, return_inverse=True),
    }
    measured = alternate(sides, rounds)
    cpu = {name: [one.cpu for one in side] for name, side in measured.items()}
    other = min(("sorted", "unsorted"), key=lambda name: statistics.median(cpu[name]))
    ratios = [theirs / ours for ours, theirs in zip(cpu["ours"], cpu[other], strict=True)]
    times = ", ".join(f"{name} {_ms(side):.0f}" for name, side in measured.items())
    return Figure(
        name="coalescing kernel, times as fast as torch.unique with inverse",
        value=statistics.median(ratios),
        unit="times as fast",
        baseline=1.0,
        target=2.0,
        spread=spread(ratios),
        note=f"{count:,} Zipf 1.05 ids of {num_rows:,} rows, {len(coalesce(ids).ids):,} different; "
        f"processor ms: {times}; against torch's faster one",
    )


def classifying(samples: int, batch_size: int, rounds: int) -> Figure:
    """Which samples are hot, against reading them from Parquet into batches."""
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder:
        stack = load(
            {
                "plugins": ["recd_dlrm"],
                "folder": folder,
                "dataset": {**CRITEO_LIKE, "samples": samples},
                "reader": {"use": "local", "prefetch": False},
                "train": {"device": "cpu", "ranks": 1, "batch_size": batch_size},
            }
        )
        batches = list(stack.loader(0, 1))
        names = stack.schema.sparse_names
        cached = np.random.default_rng(0).permutation(100_000)[:CACHED]
        tables = {name: TablePlan(table=name, replicated=cached) for name in names}
        plan = TierPlan(tables=tables, n_nodes=1, ranks_per_node=1)
        rows = HotRows(plan, {name: (name,) for name in names})
        sides: dict[str, Callable[[], object]] = {
            "classify": lambda: [rows.samples(batch) for batch in batches],
            "read": lambda: sum(len(batch) for batch in stack.loader(0, 1)),
        }
        measured = alternate(sides, rounds)
    pairs = zip(measured["classify"], measured["read"], strict=True)
    shares = [100 * ours.cpu / reading.cpu for ours, reading in pairs]
    return Figure(
        name="classification of samples, of the time to read them",
        value=statistics.median(shares),
        unit="%",
        target=10.0,
        at_most=True,
        spread=spread(shares),
        note=f"{samples:,} samples of {len(names)} ids, processor ms: "
        + ", ".join(f"{name} {_ms(side):.1f}" for name, side in measured.items())
        + f"; {CACHED:,} of 100,000 rows cached in each table, B = {batch_size}",
    )


def _ms(side: list[Round]) -> float:
    return 1e3 * statistics.median(one.cpu for one in side)
