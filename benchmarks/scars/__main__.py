"""SCARS against plain TorchRec, and its formulas against what is really moved.

    python -m benchmarks.scars [--quick] [--json] [--criteo FOLDER]

`FOLDER` has the first rows of Criteo Kaggle (kaggle_8k.tsv, kaggle_2k.tsv); without it the figures
on Criteo are left out. Those over a slow link are left out if no cluster can be emulated. A quick
run leaves out bags over that link, and the time to a loss.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.cluster.ranks import EMULATED
from benchmarks.harness import Figure, Report, main
from benchmarks.scars.formulas import bytes_moved, forecast, growth, rows_moved
from benchmarks.scars.kernels import classifying, coalescing, staging
from benchmarks.scars.larger_than_memory import larger_than_memory
from benchmarks.scars.link import MBIT, RANKS, over_the_link
from benchmarks.scars.tables import LAWS, CriteoColumns, Law, TableLookups, criteo
from recd_plugins.testing.gloo import GlooPool

SEED = 0
CRITEO = Path("../shared/data/criteo")
GROWTH = {"exponential": 1.5, "half-normal": 1.5, "Zipf 1.05": 2.0}
"""The paper's bounds."""


def measure(quick: bool, folder: Path = CRITEO) -> Report:
    torch.set_num_threads(1)
    columns = criteo(folder)
    if columns is None:
        print(f"no figures on Criteo: {folder} does not hold its rows", file=sys.stderr)
    report = compare(
        columns,
        num_rows=100_000,
        ids=1_000_000,
        samples=32_768 if quick else 65_536,
        rounds=3 if quick else 7,
    )
    more = [*larger_than_memory(quick), *over_the_link(quick)]
    link = f"{RANKS} nodes of a rank behind {MBIT} mbit/s each way, by the clock: {EMULATED}"
    return dataclasses.replace(
        report, figures=[*report.figures, *more], settings={**report.settings, "link": link}
    )


def compare(
    columns: CriteoColumns | None, *, num_rows: int, ids: int, samples: int, rounds: int
) -> Report:
    """The figures that need neither a link nor much memory: processor time, rows and bytes."""
    figures = [
        *formulas(columns, num_rows, rounds),
        *(growth(name, num_rows, 2048, most, rounds) for name, most in GROWTH.items()),
        coalescing(ids, ids, rounds),
        classifying(samples, 1024, rounds),
        staging(samples, 1024, rounds),
    ]
    settings = {
        "laws": f"{num_rows:,} rows, 10 lookups a sample; a scale of 0.1 of the rows",
        "Criteo": "10,000 rows of Kaggle, drawn anew" if columns else "not there",
        "rounds": rounds,
        "torch_threads": torch.get_num_threads(),
    }
    return Report(figures=figures, settings=settings, seed=SEED)


def formulas(columns: CriteoColumns | None, num_rows: int, rounds: int) -> Iterator[Figure]:
    sides: dict[str, TableLookups] = {name: Law(name, num_rows, 10) for name in LAWS}
    if columns is not None:
        sides["Criteo"] = columns
    for name, lookups in sides.items():
        yield rows_moved(name, lookups, 1024, 2 * rounds)
    with GlooPool(deadline=300) as pool:
        for name, lookups in sides.items():
            for cached in (0.0, 0.01):
                yield bytes_moved(
                    name, lookups, pool, dim=16, batch_size=1024, steps=rounds, cached=cached
                )
    if columns is not None:
        yield forecast(columns, 512)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--criteo", type=Path, default=CRITEO)
    arguments, rest = parser.parse_known_args()
    main("scars", partial(measure, folder=arguments.criteo), rest)
