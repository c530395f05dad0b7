"""What jobs hold as they train on and on: the slopes of memory, handles, threads, shared memory.

    python -m benchmarks.soak [--minutes N] [--job NAME]... [--quick] [--json]

Each job trains for `--minutes` (30; quick: 1). The first third of its steps is its warm-up. The
rest is parted into ten stretches of as many steps, however long a busy machine takes for them, and
of each the least counts that the job held: workers and batches in flight come and go with epochs,
and what is lost stays in the least too. A slope is the median of those between all pairs of
stretches (Theil and Sen), times the steps of that rest: how much more the job holds at its end. Its
interval holds in nine of ten cases; a job grows where all of it is above what is allowed, and a run
was too short to say where only a part is.
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
    return Report(figures=figures, settings={"minutes": minutes, "warm-up": "a third of the steps"})


def _figures(name: str, watched: Watched) -> Iterator[Figure]:
    begun, ended = watched.looks[0].step, watched.looks[-1].step
    looks = [look for look in watched.looks if 3 * look.step >= 2 * begun + ended]
    steps = ended - looks[0].step
    if not steps:
        raise SystemExit(
            f"{name} has made {ended:,} steps, too few to say anything: --minutes more"
        )
    for what, share in FLAT.items():
        values = [getattr(look, what) for look in looks]
        unit, scale = ("MiB", MIB) if what in ("memory", "shared") else ("", 1)
        held = statistics.median(values) / scale
        growth, low, high = (steps / scale * one for one in slope(looks, what))
        note = f"{growth:+,.1f}, at most {high:+,.1f}, of {held:,.1f} {unit}".rstrip()
        note += f", in {steps:,} steps"
        if unit:
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
    """Of a value's least over steps: the median of the slopes between all pairs of stretches,
    and its interval, by the ranks that Kendall's statistic takes by chance."""
    first, last = looks[0].step, looks[-1].step
    stretches: dict[int, list[Held]] = {}
    for look in looks:
        part = STRETCHES * (look.step - first) // (last - first + 1)
        stretches.setdefault(part, []).append(look)
    least = [
        (statistics.mean(look.step for look in part), min(getattr(look, what) for look in part))
        for part in stretches.values()
    ]
    count = len(least)
    slopes = sorted(
        (after - before) / (late - early)
        for (early, before), (late, after) in combinations(least, 2)
    )
    beyond = SURE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    lowest = max(0, round((len(slopes) - beyond) / 2))
    return statistics.median(slopes), slopes[lowest], slopes[-1 - lowest]


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
