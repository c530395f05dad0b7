"""Step time, bytes and memory of the paper's models: deduplicated, and on plain KJTs.

    python -m benchmarks.recd_train [--quick] [--json] [--figure PATH]

Both sides train the same samples in the same processes, a step each in turn, two gloo ranks
of one thread. `--figure` draws RM1's ablation (the paper's figure 9). A quick run has models
of an eighth of the paper's sizes, else of a quarter.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.harness import Report, main
from benchmarks.models import SMALL
from benchmarks.recd_train.ablation import draw
from benchmarks.recd_train.figures import Bench

SEED = 0


def measure(quick: bool, figure: Path | None = None) -> Report:
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as name:
        bench = Bench(
            folder=Path(name),
            scale=SMALL / 2 if quick else SMALL,
            samples=32_768,
            rounds=7 if quick else 20,
            batches=4 if quick else 8,
            seed=SEED,
        )
        return compare(bench, figure)


def compare(bench: Bench, figure: Path | None = None) -> Report:
    with bench:
        ablation = bench.ablation()
        figures = [
            *bench.rm1(ablation),
            *bench.sessions(),
            *bench.others(),
            *bench.bytes(),
            *bench.reading(),
            *bench.memory(ablation),
        ]
    if figure is not None:
        draw(ablation, figure)
    return Report(figures=figures, settings=bench.settings, seed=bench.seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--figure", type=Path, default=None)
    said, rest = parser.parse_known_args()
    main("recd_train", partial(measure, figure=said.figure), rest)
