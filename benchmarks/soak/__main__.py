"""What jobs hold as they train on and on: the slopes of memory, handles, threads, shared memory.

    python -m benchmarks.soak [--minutes N] [--job NAME]... [--quick] [--json]

Each job trains for `--minutes` (30; quick: 1). The first third is its warm-up. Of the rest, a
slope is the median of those between all pairs of looks (Theil and Sen), times the minutes of that
rest: how much more the job holds at its end.
"""

from __future__ import annotations

import argparse
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
FLAT = {"memory": 0.02, "shared": 0.1, "handles": 0.1, "threads": 0.1}
"""How much more a job may hold, as a share of what it holds: an allocator's noise of memory; and
batches in flight from workers, each of which has handles and shared memory, come and go. What is
lost with every epoch or checkpoint is more than that within half an hour."""


def measure(quick: bool, *, minutes: float, jobs: Sequence[str]) -> Report:
    minutes = 1.0 if quick else minutes
    figures = []
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
        growth = slope(looks, what) * (looks[-1].seconds - looks[0].seconds) / scale
        note = f"of {held:,.1f} {unit}".rstrip() + f", in {steps:,} steps"
        if unit and steps:
            note += f": {growth * 1024 / steps:+.2f} KiB a step"
        yield Figure(
            name=f"{name}: growth of {what}",
            value=growth,
            unit=unit,
            target=share * held,
            at_most=True,
            note=f"{note}; {min(values) / scale:,.1f} to {max(values) / scale:,.1f}",
        )
    wrong = (watched.code != 0) + len(watched.left)
    yield Figure(
        name=f"{name}: left behind",
        value=wrong,
        unit="",
        target=0,
        at_most=True,
        note=f"exit code {watched.code}; temporary files: {', '.join(watched.left) or 'none'}",
    )


def slope(looks: Sequence[Held], what: str) -> float:
    """Of a value over seconds: the median of the slopes between all pairs of looks."""
    pairs = combinations([(look.seconds, getattr(look, what)) for look in looks], 2)
    return statistics.median(
        (after - before) / (late - early) for (early, before), (late, after) in pairs
    )


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
