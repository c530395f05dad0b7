"""The reader service beside the local reader, and workers that are killed.

    python -m benchmarks.service [--quick] [--json] [--trials N]

`--trials N` disturbs workers at random in N runs, and measures nothing else.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks.harness import Report, main
from benchmarks.service.disturbed import stall, trials
from benchmarks.service.rates import one_worker, second_job, wire

BATCH_SIZE = 512


def measure(quick: bool, count: int | None = None, *, samples: int | None = None) -> Report:
    """torch runs on one thread, as it does in a worker; `count`: trials alone, so many."""
    torch.set_num_threads(1)
    samples = samples or (30_000 if quick else 120_000)
    rounds, few = (3, 2) if quick else (7, 6)
    sizes = {"samples": samples, "batch_size": BATCH_SIZE}
    small = {"samples": min(samples, 20_000), "batch_size": 128}
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as name:
        folder = Path(name)
        figures = []
        if count is None:
            figures += one_worker(folder, rounds, **sizes)
            figures.append(wire(folder, **sizes))
            figures.append(second_job(folder, rounds, **sizes))
            figures.append(stall(folder, few, **small))
        figures.append(trials(folder, few if count is None else count, **small))
    settings = {**sizes, "disturbed": small, "rounds": rounds, "torch_threads": 1}
    return Report(figures=figures, settings=settings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--trials", type=int, default=None)
    options, rest = parser.parse_known_args()
    about = "--trials N: disturb workers at random in N runs, and measure nothing else"
    main("service", partial(measure, count=options.trials), rest, about=about)
