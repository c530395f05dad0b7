"""Forecasts for data that were not seen, compared with what happened.

    python -m benchmarks.honesty [--quick] [--json] [--data FOLDER] [--only PART...]

`FOLDER` has small real tables (yoochoose, ml100k, criteo); missing ones are left out. Parts:
coverage, trained, profile, imports, scored_ids, step_time; by default all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Figure, Report, main
from benchmarks.honesty import imports, scored_ids, step_time
from benchmarks.honesty.coverage import Judged, figures, judge
from benchmarks.honesty.profile_cost import profile_cost
from benchmarks.honesty.tables import HonestyTable, generated_tables, real_tables
from benchmarks.honesty.trained import trained_figures

DATA = Path("../shared/data")


PARTS = ("coverage", "trained", "profile", "imports", "scored_ids", "step_time")


def measure(quick: bool, data: Path = DATA, only: Sequence[str] = PARTS) -> Report:
    torch.set_num_threads(1)
    every: list[Figure] = []
    settings: dict[str, Any] = {"parts": list(only)}
    with tempfile.TemporaryDirectory() as folder:
        if "coverage" in only:
            made = list(generated_tables(60_000 if quick else 120_000))
            tables = [*(made[::3] if quick else made), *real_tables(data)]
            settings["tables"] = [table.name for table in tables]
            every += figures(_judged(tables, Path(folder)))
        if "trained" in only:
            every += trained_figures(data, Path(folder), quick)
        if "profile" in only:
            every += profile_cost(Path(folder), 100_000 if quick else 6_000_000)
    if "imports" in only:
        every += imports.figures(quick)
    for part in (scored_ids, step_time):
        name = part.__name__.rpartition(".")[2]
        if name in only:
            report = part.measure(quick)
            every += report.figures
            settings[name] = dict(report.settings)
    return Report(figures=every, settings=settings)


def _judged(tables: Sequence[HonestyTable], folder: Path) -> list[Judged]:
    judged = []
    for table in tables:
        found = judge(table, folder)
        judged += found
        errors = ", ".join(
            f"{one.cached:,}: {one.forecast:.1%} ± {(one.high - one.low) / 2:.1%}, "
            f"{one.served:.1%} served (own {one.own:.1%})"
            for one in found
        )
        print(f"{table.name}: {errors}", file=sys.stderr, flush=True)
    return judged


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, metavar="PART")
    arguments, rest = parser.parse_known_args()
    chosen = partial(measure, data=arguments.data, only=arguments.only)
    main("honesty", chosen, rest, about=f"parts: {', '.join(PARTS)}")
