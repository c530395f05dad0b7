"""What jobs hold as they train on and on: the slopes of memory, handles, threads, shared memory.

    python -m benchmarks.soak [--minutes N] [--job NAME]... [--quick] [--json]

Each job trains for `--minutes` (30; quick: 1). The first third is its warm-up. The rest is parted
into ten stretches, and of each the least counts that the job held: workers and batches in flight
come and go with epochs, and what is lost stays in the least too. A slope is the median of those
between all pairs of stretches (Theil and Sen), times the minutes of that rest: how much more the
job holds at its end. Its interval holds in nine of ten cases; a job grows where all of it is above
what is allowed, and a run was too short to say where only a part is.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

from benchmarks.harness import Figure, Report, main
from benchmarks.soak.jobs import JOBS
from benchmarks.soak.watched import Held, Watched, watch

MIB = 1 << 20
STRETCHES = 10
SURE = 1.645
"""Standard deviations on either side of an interval."""
FLAT = {"memory": 0.02, "shared": 0.1, "handles": 0.1, "threads": 0.1, "processes": 0.1}
"""How much more a job may hold, as a share of what it holds: an allocator's noise of memory; and
batches in flight from workers, each of which has handles and shared memory, come and go. What is
lost with every epoch or checkpoint is more than that within half an hour."""


def measure(quick: bool, *, minutes: float, jobs: Sequence[str]) -> Report:
    minutes = 1.0 if quick else minutes
    figures: list[Figure] = []
    for name in jobs or JOBS:
        with tempfile.TemporaryDirectory() as folder:
            figures += _figures(name, watch(JOBS[name], 60 * minutes, Path(folder)))
    return Report(figures=figures, settings={"minutes": minutes, "warm-up": "a third"})


def _figures(name: str, watched: Watched) -> Iterator[Figure]:
    looks = watched.looks[len(watched.looks) // 3 :]
    steps = looks[-1].step - looks[0].step
    for what, share in FLAT.items():
        values = [getattr(look, what) for look in looks]
        unit, scale = ("MiB", MIB) if what in ("memory", "shared") else ("", 1)
        held = statistics.median(values) / scale
        whole = (looks[-1].seconds - looks[0].seconds) / scale
        growth, low, high = (whole * one for one in slope(looks, what))
        note = f"{growth:+,.1f}, at most {high:+,.1f}, of {held:,.1f} {unit}".rstrip()
        note += f", in {steps:,} steps"
        if unit and steps:
            note += f": {growth * 1024 / steps:+.2f} KiB a step"
        allowed = share * held
        if low <= allowed < high:
            note += "; too short to say"
        yield Figure(
            name=f"{name}: growth of {what}, at least",
            value=low,
            unit=unit,
            target=allowed,
            at_most=True,
            note=f"{note}; {min(values) / scale:,.1f} to {max(values) / scale:,.1f} held",
        )
    wrong = (watched.code != 0) + len(watched.left)
    yield Figure(
        name=f"{name}: left behind",
        value=wrong,
        unit="",
        target=0,
        at_most=True,
        note=f"exit code {watched.code}; temporary files: {', '.join(watched.left) or 'none'}"
        + (f"; it printed: {watched.printed}" if watched.code else ""),
    )


def slope(looks: Sequence[Held], what: str) -> tuple[float, float, float]:
    """Of a value's least over seconds: the median of the slopes between all pairs of stretches,
    and its interval, by the ranks that Kendall's statistic takes by chance."""
    least = []
    count = min(STRETCHES, len(looks))
    for part in range(count):
        stretch = looks[part * len(looks) // count : (part + 1) * len(looks) // count]
        when = statistics.mean(look.seconds for look in stretch)
        least.append((when, min(getattr(look, what) for look in stretch)))
    slopes = sorted(
        (after - before) / (late - early)
        for (early, before), (late, after) in combinations(least, 2)
    )
    beyond = SURE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    first = max(0, round((len(slopes) - beyond) / 2))
    return statistics.median(slopes), slopes[first], slopes[-1 - first]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--job", action="append", choices=list(JOBS))
    chosen, rest = parser.parse_known_args()
    # The system's allocator: one that keeps what it has would hide what is not given back.
    main(
        "soak",
        partial(measure, minutes=chosen.minutes, jobs=chosen.job or ()),
        rest,
        keeps_memory=False,
    )
