"""Processor time of what coalescing and hot batches add, against the work that there was before."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import torch

from benchmarks.harness import Figure, Limit, Round, alternate, dropped, spread
from benchmarks.limits import copies
from benchmarks.scars.tables import Law
from recd_plugins.data.batch import Batch
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.joined import JoinedFeatures
from recd_plugins.sparse.rows.coalesce import coalesce
from recd_plugins.stack import Stack, load
from recd_scars.hot_batches import HotBatches
from recd_scars.hot_batches.hot_rows import HotRows

__all__ = ["classifying", "coalescing", "staging"]

FEATURES, NUM_IDS = 26, 100_000
CRITEO_LIKE = {"use": "random", "lookups": 1, "num_ids": [NUM_IDS] * FEATURES}
CACHED = 20_000
"""The number of cached rows of each table; they are anywhere in it."""
HALF_CACHED = 97_220
"""The number of cached rows with which about half of the samples have only cached rows."""
WINDOW = 16


def coalescing(num_rows: int, count: int, rounds: int) -> Figure:
    """The different ids, and the inverse, of Zipf ids that are anywhere in the table."""
    drawn = Law("Zipf 1.05", num_rows, 1).draw(count, seed=0)["table"]
    ids = torch.randperm(num_rows, generator=torch.Generator().manual_seed(1))[drawn]
    places, numbers = ids.numpy(), np.arange(num_rows, dtype=np.int32)
    inverse = np.empty(count, np.int32)
    sides: dict[str, Callable[[], object]] = {
        "ours": dropped(lambda: coalesce(ids)),
        "a read": dropped(lambda: numbers.take(places, out=inverse, mode="clip")),
        "sorted": dropped(lambda: torch.unique(ids, return_inverse=True)),
        "unsorted": dropped(lambda: torch.unique(ids, sorted=False, return_inverse=True)),
    }
    measured = alternate(sides, rounds, of="coalescing")
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
        limit=Limit(
            value=statistics.median(cpu[other]) / statistics.median(cpu["a read"]),
            of=f"each id is looked up once in {4e-6 * num_rows:,.1f} MB, 4 bytes a row; filling "
            "them is left out",
        ),
        spread=spread(ratios),
        note=f"{count:,} Zipf 1.05 ids of {num_rows:,} rows, {len(coalesce(ids).ids):,} different; "
        f"processor ms: {times}; against torch's faster one",
    )


def _features(batch: Batch) -> SparseFeatures:
    return SparseFeatures.of(batch.features, batch.dedup)


def classifying(samples: int, batch_size: int, rounds: int) -> Figure:
    """Finding which samples of joined windows are hot, against reading them from Parquet into
    batches.

    The value is for half of the samples hot: a sample is read up to its first row that is not
    cached, so with few hot samples it takes less time.
    """
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder:
        stack = _stack(folder, samples, batch_size)
        batches = list(stack.loader(0, 1))
        few, half = (
            HotRows(planned.tier_plan, planned.features_of)
            for planned in (_Planned(stack.schema.sparse_names, n) for n in (CACHED, HALF_CACHED))
        )
        windows = [batches[start : start + WINDOW] for start in range(0, len(batches), WINDOW)]

        def classified(rows: HotRows) -> None:
            for window in windows:
                features = [_features(batch) for batch in window]
                rows.samples_of_all(JoinedFeatures([one.plain for one in features]), features)

        sides: dict[str, Callable[[], object]] = {
            "few hot": lambda: classified(few),
            "half hot": lambda: classified(half),
            "read": lambda: sum(map(len, stack.loader(0, 1))),
        }
        measured = alternate(sides, rounds, of="classification of samples")
    pairs = zip(measured["half hot"], measured["read"], strict=True)
    shares = [100 * ours.cpu / reading.cpu for ours, reading in pairs]
    return Figure(
        name="classification of samples, of the time to read them",
        value=statistics.median(shares),
        unit="%",
        target=10.0,
        at_most=True,
        spread=spread(shares),
        note=_note(samples, f"{CACHED:,} or {HALF_CACHED:,}", batch_size, measured),
    )


def staging(samples: int, batch_size: int, rounds: int) -> Figure:
    """What it adds to reading to put the samples into hot batches and others."""
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder:
        stack = _stack(folder, samples, batch_size)
        planned = _Planned(stack.schema.sparse_names, HALF_CACHED)
        rows = HotRows(planned.tier_plan, planned.features_of)
        batches = list(stack.loader(0, 1))
        hot = np.concatenate([rows.samples(_features(batch)) for batch in batches]).mean()
        ids = [batch.features.values().numpy() for batch in batches]
        rest = [part.numpy() for batch in batches for part in (batch.dense, batch.labels)]

        def staged() -> int:
            stage = HotBatches(stack.loader(0, 1), planned, rank=0, world_size=1, window=WINDOW)
            return sum(map(len, stage))

        sides: dict[str, Callable[[], object]] = {
            "stage": staged,
            "read": lambda: sum(map(len, stack.loader(0, 1))),
            "a copy": copies([*ids, *rest]),
        }
        measured = alternate(sides, rounds, of="reading in hot batches")
    pairs = zip(measured["stage"], measured["read"], strict=True)
    shares = [ours.cpu / reading.cpu for ours, reading in pairs]
    return Figure(
        name="reading in hot batches, of the time to read",
        value=statistics.median(shares),
        unit="x the time",
        target=1.1,
        at_most=True,
        limit=Limit(
            value=1 + _ms(measured["a copy"]) / _ms(measured["read"]),
            of="reading, and one copy of ids and dense values; which samples are hot is left out",
        ),
        spread=spread(shares),
        note=_note(samples, f"{HALF_CACHED:,}", batch_size, measured)
        + f", windows of {WINDOW}; {hot:.0%} of the samples hot",
    )


class _Planned:
    """A tier plan that says which rows are cached: equally many of each table."""

    def __init__(self, names: Sequence[str], cached: int) -> None:
        rows = np.random.default_rng(0).permutation(NUM_IDS)[:cached]
        tables = {name: TablePlan(table=name, replicated=rows) for name in names}
        self.tier_plan = TierPlan(tables=tables, n_nodes=1, ranks_per_node=1)
        self.features_of = {name: (name,) for name in names}
        self.group = None


def _stack(folder: str, samples: int, batch_size: int) -> Stack:
    return load(
        {
            "plugins": ["recd_dlrm"],
            "folder": folder,
            "dataset": {**CRITEO_LIKE, "samples": samples},
            "reader": {"use": "local", "prefetch": False},
            "train": {"device": "cpu", "ranks": 1, "batch_size": batch_size},
        }
    )


def _note(samples: int, cached: str, batch_size: int, measured: dict[str, list[Round]]) -> str:
    times = ", ".join(f"{name} {_ms(side):.1f}" for name, side in measured.items())
    return (
        f"{samples:,} samples of {FEATURES} ids, processor ms: {times}; {cached} of {NUM_IDS:,} "
        f"rows cached in each table, B = {batch_size}"
    )


def _ms(side: list[Round]) -> float:
    return 1e3 * statistics.median(one.cpu for one in side)
