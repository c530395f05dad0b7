"""FlexShard: the paper's tables planned again, and plans measured on an emulated cluster.

    python -m benchmarks.flexshard [--quick] [--json] [--figure PATH] [--only NUMBER...]

The cluster needs root; if none can be made, the run says so and leaves out its figures. Sides take
turns in the same ranks, step by step; `--figure` draws predicted against observed bytes (the
paper's figure 6). A quick run has one setting of the grid of nine, a third of its plans, and fewer
rounds; `--only` measures only the settings of the given numbers, which `--help` lists.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.cluster.network import available
from benchmarks.cluster.ranks import EMULATED
from benchmarks.flexshard.billion_rows import billion_rows
from benchmarks.flexshard.emulated import EmulatedCluster
from benchmarks.flexshard.figures import Bench
from benchmarks.flexshard.grid import (
    BUDGET,
    GRID,
    NO_SKEW,
    QUICK_GRID,
    SATURATED,
    Setting,
)
from benchmarks.flexshard.memory import K, k_of_replicas
from benchmarks.flexshard.observed import draw
from benchmarks.flexshard.paper import PRICES
from benchmarks.flexshard.paper_tables import k_of_ours, table_5, table_6
from benchmarks.flexshard.router import router
from benchmarks.flexshard.steps import QUICK_ROUNDS
from benchmarks.harness import Figure, Report, main
from recd_plugins.planning.cluster.measured_topology import ROUNDS

__all__ = ["measure"]


SETTINGS = [*GRID, SATURATED, NO_SKEW]
"""By number, for a run of some of them."""


def measure(quick: bool, figure: Path | None = None, only: Sequence[int] = ()) -> Report:
    rounds = 3 if quick else 15
    figures: list[Figure] = []
    if not only:
        figures = [*table_5(), *table_6()]
        figures += router(rounds, num_rows=30_000_000, hot=2_500_000, ids=1_000_000)
        figures += billion_rows(tables=10) if quick else billion_rows()
    settings: dict[str, Any] = {
        "paper": f"k {PRICES.k}, B {PRICES.batch_size}, {PRICES.cluster.world_size} ranks in "
        f"nodes of {PRICES.cluster.ranks_per_node}, topology flexshard_a100",
    }
    if missing := available():
        settings["emulated cluster"] = f"none, so nothing is measured on it: it needs {missing}"
        return Report(figures=[*figures, *k_of_ours(K)], settings=settings)
    replicas = k_of_replicas(runs=1 if quick else 3)
    figures += [replicas, *k_of_ours(round(replicas.value, 2))]
    grid = [SETTINGS[number] for number in only] or (QUICK_GRID if quick else GRID)
    settings |= {
        "emulated cluster": f"{EMULATED}; the topology measured in each, k as measured",
        "model": "a table of sequences and a mean, row-wise Adagrad, TrainPipelineSparseDist",
        "grid": f"{len(grid)} of {len(GRID)} settings",
        "memory for replicas": f"{BUDGET / 2**20:.0f} MiB a rank in the grid, elsewhere none over "
        "row-wise",
        "rounds": rounds,
    }
    bench = Bench(k=replicas.value, rounds=rounds, every=3 if quick else 1)
    timed = QUICK_ROUNDS if quick else ROUNDS
    figures += cluster_figures(bench, grid if only else [SATURATED, NO_SKEW, *grid], timed)
    figures.append(bench.bytes())
    if figure is not None:
        draw(bench.observed, figure)
    return Report(figures=figures, settings=settings)


def cluster_figures(bench: Bench, settings: Sequence[Setting], timed: int) -> Iterator[Figure]:
    """The figures of one cluster of each shape. Its topology is measured once for each bandwidth,
    in `timed` rounds."""
    figures = {SATURATED: bench.saturated, NO_SKEW: bench.no_skew}
    for shape, (first, *rest) in groupby(sorted(settings, key=_shape), _shape):
        with EmulatedCluster(*shape, first.mbit, rounds=timed) as cluster:
            for setting in (first, *rest):
                yield from figures.get(setting, bench.regret)(cluster, setting)


def _shape(setting: Setting) -> tuple[int, int]:
    return setting.n_nodes, setting.ranks_per_node


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--figure", type=Path, default=None)
    parser.add_argument(
        "--only", nargs="+", type=int, default=(), choices=range(len(SETTINGS)), metavar="NUMBER"
    )
    arguments, rest = parser.parse_known_args()
    each = "; ".join(f"{number}: {setting}" for number, setting in enumerate(SETTINGS))
    chosen = partial(measure, figure=arguments.figure, only=arguments.only)
    main("flexshard", chosen, rest, about=f"settings: {each}")
