"""One model, and what each paper adds to the one before, in turns on an emulated cluster.

    python -m benchmarks.combined [--quick] [--json]

Two nodes of two gloo ranks (two of four with `--wide`), 200 mbit between nodes; needs root. All
sides train in the same ranks, step by step, on held batches; the first two on batches as a table
in the order of time has them, the others on clustered ones. Plans are made by a topology that is
measured first, and by a profile of the table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.cluster.network import Network, available
from benchmarks.cluster.ranks import ClusterRanks
from benchmarks.combined.additions import ADDITIONS, OWN, PLAIN, OnCluster
from benchmarks.flexshard.steps import topology as measured_topology
from benchmarks.harness import Figure, Report, main, spread
from benchmarks.recd_train.ranks import TrainSteps, take_turns
from recd_plugins.planning.topology import save_topology

N_NODES, MBIT = 2, 200
LIMIT = 3600.0


def measure(quick: bool, wide: bool = False) -> Report:
    ranks_per_node = 4 if wide else 2
    scale = 1 / 8 if quick else 1 / 6
    settings: dict[str, object] = {
        "cluster": f"{N_NODES} network namespaces of {ranks_per_node} gloo ranks of one thread, "
        f"{MBIT} mbit between them",
        "model": f"RM1 of benchmarks/models, every size times {scale:.3g}; S = 16.5",
    }
    if missing := available():
        settings["cluster"] = f"none, so nothing is measured: it needs {missing}"
        return Report(figures=[], settings=settings)
    rounds, batches = (3, 4) if quick else (9, 8)
    settings |= {"rounds": rounds, "batches": f"{batches} a rank, held ready"}
    with (
        tempfile.TemporaryDirectory(prefix="recd-bench-") as folder,
        Network(N_NODES, MBIT) as network,
        ClusterRanks(network, ranks_per_node) as ranks,
    ):
        found = Path(folder) / "topology.yaml"
        save_topology(ranks.run(measured_topology, ranks_per_node)[0], found)
        workload = OnCluster(
            model="rm1",
            scale=scale,
            folder=Path(folder),
            samples=16_384 if quick else 65_536,
            topology=found,
            ranks=ranks.world_size,
        )
        workload.prepare()
        settings["samples a rank"] = workload.batch_size
        turns = partial(take_turns, rounds=rounds, batches=batches, counted=batches, weighed=1)
        steps = ranks.run(turns, workload, ADDITIONS, limit=LIMIT)
    return Report(figures=[*_figures(steps)], settings=settings)


def _figures(ranks: Sequence[dict[str, TrainSteps]]) -> list[Figure]:
    figures = [_beside_plain(ranks, name) for name in ranks[0]]
    best = max(figures, key=lambda figure: figure.value)
    own = next(figure for figure in figures if figure.name == OWN)
    together = Figure(
        name="all together, against TorchRec's own best plan",
        value=best.value / own.value,
        unit="x faster",
        baseline=1.0,
        note=f"{best.name}; load {os.getloadavg()[0]:.1f}",
    )
    return [*figures, together]


def _beside_plain(ranks: Sequence[dict[str, TrainSteps]], name: str) -> Figure:
    plain, ours = ranks[0][PLAIN], ranks[0][name]
    gains = [other / mine for other, mine in zip(plain.seconds, ours.seconds, strict=True)]
    before, after = (
        statistics.mean(_exchanged(rank, side) for rank in ranks) for side in (PLAIN, name)
    )
    held, holds = (
        statistics.mean(size for rank in ranks for size in rank[side].memory)
        for side in (PLAIN, name)
    )
    times = [1e3 * statistics.median(one.seconds) for one in (ours, plain)]
    return Figure(
        name=name,
        value=statistics.median(gains),
        unit="x faster",
        baseline=1.0,
        spread=spread(gains),
        note=f"{times[0]:,.0f} ms for {times[1]:,.0f}; {after / 1e6:.2f} MB a rank to collectives, "
        f"{before / after:.1f}x fewer; {100 * holds / held:.0f}% of the step's memory; "
        f"{100 * ours.hot:.0f}% of batches hot; loss {ours.loss:.4f}",
    )


def _exchanged(rank: dict[str, TrainSteps], name: str) -> float:
    """Bytes that a rank hands to collectives in a step, without the dense parameters' gradients:
    plain TorchRec all-reduces nothing else."""
    dense = sum(rank[PLAIN].traffic["all_reduce"].values())
    return sum(sum(phases.values()) for phases in rank[name].traffic.values()) - dense


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--wide", action="store_true")
    arguments, rest = parser.parse_known_args()
    main("combined", partial(measure, wide=arguments.wide), rest)
