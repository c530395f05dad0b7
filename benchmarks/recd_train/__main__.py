"""Step time, bytes and memory of the paper's models: deduplicated, and on plain KJTs.

    python -m benchmarks.recd_train [--quick] [--json] [--figure PATH]

Both sides train the same samples in the same processes, a step each in turn, on two gloo ranks of
one thread. `--figure` draws RM1's ablation (the paper's figure 9). The models have a quarter of the
paper's sizes, and a sixth in a quick run, where a step's fixed costs weigh more. A quick run leaves
out sessions of four samples, and the resident memory of separate processes.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.harness import Report, main
from benchmarks.models import SMALL
from benchmarks.recd_train.ablation import draw
from benchmarks.recd_train.figures import TrainBench
from benchmarks.recd_train.measured import MeasuredTraining
from recd_plugins.testing.gloo import GlooPool


def measure(quick: bool, figure: Path | None = None) -> Report:
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder, GlooPool() as pool:
        bench = TrainBench(
            folder=Path(folder),
            pool=pool,
            scale=1 / 6 if quick else SMALL,
            samples=16_384 if quick else 65_536,
            rounds=4 if quick else 20,
            batches=3 if quick else 8,
            quick=quick,
        )
        ablation = bench.ablation()
        if figure is not None:
            draw(ablation, figure)
        return compare(bench, ablation)


def compare(bench: TrainBench, ablation: MeasuredTraining) -> Report:
    figures = [
        *bench.rm1(ablation),
        *bench.memory(ablation),
        *bench.sessions(),
        *bench.others(),
        *bench.bytes(),
        *bench.reading(),
    ]
    return Report(figures=figures, settings=bench.settings, seed=bench.seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--figure", type=Path, default=None)
    arguments, rest = parser.parse_known_args()
    main("recd_train", partial(measure, figure=arguments.figure), rest)
