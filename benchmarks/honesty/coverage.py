"""The share of lookups that a cache serves: as forecast by a profile, and as really served."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import Figure
from benchmarks.honesty.tables import RANKS, HonestyTable
from recd_plugins.planning.access.access_profile import Tally
from recd_plugins.planning.access.batches_of_ranks import BatchesOfRanks
from recd_plugins.planning.access.distribution import Integers
from recd_plugins.planning.access.forecast import FOLDS
from recd_plugins.planning.access.row_counter import RowCounter
from recd_plugins.planning.access.sample import sample_of

__all__ = ["Judged", "figures", "judge"]

SHARES = (0.3, 0.5, 0.7)
"""The caches have this much coverage by the forecast, as far as it reaches."""
ROWS = (0.01, 0.05)
"""Caches of these shares of the rows."""
BATCHES = 100
"""The most batches of each rank that are counted; of a small table no more than a fifth."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One cache of one table."""

    table: HonestyTable
    cached: int
    """The number of cached rows."""
    forecast: float
    low: float
    high: float
    own: float
    """The share that the sample's own counts promise."""
    served: float
    seconds: float
    """The seconds that the profile took."""
    reading: float
    """The seconds that it takes to read an epoch."""

    @property
    def error(self) -> float:
        """The difference between the served and the forecast share, in points."""
        return 100 * abs(self.forecast - self.served)

    @property
    def within(self) -> bool:
        return self.low <= self.served <= self.high


def judge(table: HonestyTable, folder: Path) -> list[Judged]:
    """Count a part of a table as planners do, and then how many lookups the rows chosen by that
    count serve in the rest of the epoch."""
    stack = table.stack(folder)
    counted = table.counted(stack)
    length = len(stack.read(0, RANKS))
    began = time.perf_counter()
    tally = Tally(counted=counted)
    batches = BatchesOfRanks(stack.read, RANKS)
    for fold, batch in sample_of(batches, min(BATCHES, max(length // 5, 8))):
        tally.count(batch, fold)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    for _ in stack.read(0, RANKS):
        pass
    reading = RANKS * (time.perf_counter() - began)
    seen = {name: _seen(_exact(counter)) for name, counter in tally.counters.items()}
    own = {name: _exact(counter).distribution() for name, counter in tally.counters.items()}
    began = time.perf_counter()
    profile = tally.profile(counted_share=0)
    seconds += time.perf_counter() - began
    found = []
    for name, part in counted.items():
        rows, rest = profile[name], table.lookups(stack, part) - seen[name]
        share = rows.coverage(np.arange(rows.num_rows + 1))
        sizes = {round(part * rows.num_rows) for part in ROWS}
        sizes |= {int(np.searchsorted(share, one)) for one in SHARES}
        for cached in sorted(sizes):
            if not 0 < cached <= np.count_nonzero(seen[name]):
                continue
            low, high = rows.interval(cached)
            found.append(
                Judged(
                    table=table,
                    cached=cached,
                    forecast=rows.coverage(cached),
                    low=low,
                    high=high,
                    own=own[name].coverage(cached),
                    served=float(rest[rows.hottest(cached)].sum() / rest.sum()),
                    seconds=seconds,
                    reading=reading,
                )
            )
    return found


def figures(judged: Sequence[Judged]) -> Iterable[Figure]:
    """The rows of the target table."""
    for drifts, kind, middle, most in (
        (False, "stationary", 2.0, 5.0),
        (True, "drifting", 5.0, 10.0),
    ):
        some = [one for one in judged if one.table.drifts == drifts]
        if not some:
            continue
        tables = len({one.table.name for one in some})
        own = [100 * abs(one.own - one.served) for one in some]
        worst = max(some, key=lambda one: one.error)
        yield Figure(
            name=f"coverage, forecast against served, {kind}: median",
            value=statistics.median(one.error for one in some),
            unit="points",
            baseline=statistics.median(own),
            target=middle,
            at_most=True,
            note=f"{len(some)} caches of {tables} tables; baseline: the sample's own counts",
        )
        yield Figure(
            name=f"coverage, forecast against served, {kind}: worst",
            value=worst.error,
            unit="points",
            baseline=max(own),
            target=most,
            at_most=True,
            note=f"{worst.table.name}: {worst.cached:,} rows, {worst.forecast:.1%} forecast, "
            f"{worst.served:.1%} served",
        )
    yield Figure(
        name="coverage, served within the interval",
        value=100 * statistics.fmean(one.within for one in judged),
        unit="%",
        target=90,
        note=f"{len(judged)} caches; half of the width in the median: "
        f"{100 * statistics.median((one.high - one.low) / 2 for one in judged):.2f} points",
    )
    slowest = max(judged, key=lambda one: one.seconds)
    yield Figure(
        name="cost of a profile: the longest",
        value=slowest.seconds,
        unit="s",
        baseline=slowest.reading,
        target=20,
        at_most=True,
        note=f"{slowest.table.name}; baseline: an epoch's reading",
    )


def _exact(counter: object) -> RowCounter:
    assert isinstance(counter, RowCounter)  # no table is so large that it is sketched
    return counter


def _seen(counter: RowCounter) -> Integers:
    """[num_rows] how often each row was counted."""
    pairs, lookups, _ = counter.counted
    return np.bincount(pairs // FOLDS, weights=lookups, minlength=counter.num_rows).astype(np.int64)
