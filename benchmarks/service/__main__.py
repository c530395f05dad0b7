"""The reader service compared with the local reader, and workers that are killed.

    python -m benchmarks.service [--quick] [--json] [--trials N [--seed S]]

`--trials N` makes N runs, each with a fault at random times, and measures nothing else.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks.harness import NOT_MEASURED, Report, main
from benchmarks.service.coordinated import coordinator_load
from benchmarks.service.disturbed import stall
from benchmarks.service.own_core import missing_cores, own_core
from benchmarks.service.rates import one_worker, second_job, wire
from benchmarks.service.ray_data import MISSING, beside_ray_data
from benchmarks.service.stalls import stalls
from benchmarks.service.trials import trials

BATCH_SIZE = 512
LARGER = 2048
"""The samples of a batch of the paper's RM1."""


def measure(
    quick: bool, count: int | None = None, seed: int = 0, *, samples: int | None = None
) -> Report:
    """torch runs on one thread, as in a worker. With `count`, only that many trials are made."""
    torch.set_num_threads(1)
    samples = samples or (30_000 if quick else 120_000)
    rounds, few = (3, 2) if quick else (7, 6)
    calling, seconds = (200, 5.0) if quick else (1000, 60.0)
    sizes = {"samples": samples, "batch_size": BATCH_SIZE}
    small = {"samples": min(samples, 20_000), "batch_size": 128}
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as name:
        folder = Path(name)
        figures = []
        if count is None:
            figures += one_worker(folder, rounds, **sizes)
            figures += one_worker(
                folder, few, f" of {LARGER:,}", samples=2 * samples, batch_size=LARGER
            )
            if not missing_cores():
                figures += own_core(folder, rounds, **sizes)
            figures += wire(folder, **sizes)
            figures.append(second_job(folder, rounds, **sizes))
            if not MISSING:
                figures.append(beside_ray_data(folder, rounds, **sizes))
            # In a short epoch the workers begin for much of its time.
            figures.append(
                stalls(
                    folder,
                    rounds,
                    samples=samples if quick else 4 * samples,
                    batch_size=BATCH_SIZE,
                )
            )
            figures.append(stall(folder, few, **small))
            figures.append(coordinator_load(calling, seconds))
        else:
            figures.append(trials(folder, count, seed=seed))
    settings = {**sizes, "larger": LARGER, "disturbed": small, "rounds": rounds, "torch_threads": 1}
    ray_data = (
        f"Ray Data, which lacks {' and '.join(MISSING)}: pip install 'ray[data]'" if MISSING else ""
    )
    if missing := [*filter(None, (missing_cores(), ray_data))]:
        settings[NOT_MEASURED] = "; ".join(missing)
    return Report(figures=figures, settings=settings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--trials", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    options, rest = parser.parse_known_args()
    about = "--trials N [--seed S]: N runs, each with a fault at random, and measure nothing else"
    given = partial(measure, count=options.trials, seed=options.seed)
    main("service", given, rest, about=about)
