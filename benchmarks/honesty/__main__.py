"""What is forecast of data that nobody has seen, beside what turns out.

    python -m benchmarks.honesty [--quick] [--json] [--data FOLDER]

`FOLDER` holds small real tables (yoochoose, ml100k, criteo); those that are not there are left
out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Report, main
from benchmarks.honesty import imports, scored_ids, step_time
from benchmarks.honesty.coverage import figures, judge
from benchmarks.honesty.profile_cost import profile_cost
from benchmarks.honesty.tables import generated_tables, real_tables
from benchmarks.honesty.trained import trained_figures

DATA = Path("../shared/data")


def measure(quick: bool, data: Path = DATA) -> Report:
    torch.set_num_threads(1)
    tables = [*generated_tables(60_000 if quick else 120_000), *real_tables(data)]
    judged = []
    with tempfile.TemporaryDirectory() as folder:
        trained = [
            *trained_figures(data, Path(folder), quick),
            *profile_cost(Path(folder), 100_000 if quick else 6_000_000),
        ]
        for table in tables:
            found = judge(table, Path(folder))
            judged += found
            errors = ", ".join(
                f"{one.cached:,}: {one.forecast:.1%} ± {(one.high - one.low) / 2:.1%}, "
                f"{one.served:.1%} served (own {one.own:.1%})"
                for one in found
            )
            print(f"{table.name}: {errors}", file=sys.stderr, flush=True)
    settings: dict[str, Any] = {"tables": [table.name for table in tables]}
    every = [*figures(judged), *trained, *imports.figures(quick)]
    for part in (scored_ids, step_time):
        report = part.measure(quick)
        every += report.figures
        settings[part.__name__.rpartition(".")[2]] = dict(report.settings)
    return Report(figures=every, settings=settings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", type=Path, default=DATA)
    arguments, rest = parser.parse_known_args()
    main("honesty", partial(measure, data=arguments.data), rest)
