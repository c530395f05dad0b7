"""What is chosen for jobs that nobody wrote: it may not be slower than TorchRec's own plan.

    python -m benchmarks.advise.drawn [--quick] [--json] [--seeds SEED ...]

Each setting is drawn from a seed: ranks and the link between them, tables, features and how often
they repeat, poolings, sizes. None of them tuned anything. What `auto` chooses of all that can, and
what `recd advise` says, take turns with TorchRec's own plan of the same job, reading included, on
an emulated cluster (needs root). That plan is there twice: the others are held to both, and what is
between the two says how far two timings of one job are apart. Where memory happens to lie makes a
job faster or slower for as long as it is there: if a side seems to be slower, all are assembled
anew several times, and the median of those timings counts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.advise.held_sides import assemble_sides, drop_sides, time_sides
from benchmarks.cluster.network import Network, available
from benchmarks.cluster.ranks import EMULATED, ClusterRanks
from benchmarks.flexshard.steps import topology as measured_topology
from benchmarks.harness import Figure, Report, main, spread
from recd_plugins.advise.advice import advise
from recd_plugins.advise.goal import AdviceGoal
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.cluster.topology import save_topology
from recd_plugins.registry import Registry
from recd_plugins.stack import load

__all__ = ["ADVISED", "AUTO", "OWN", "DrawnSetting", "measure"]

OWN, AGAIN = "TorchRec's own plan", "TorchRec's own plan again"
AUTO, ADVISED = "auto", "what recd advise says"
NEVER_BELOW = 0.97
SEEDS, QUICK_SEEDS = range(12), range(2)
BUDGET_GB = 0.05
"""Over TorchRec's own plan, a rank."""
ROUNDS, ANEW = 7, 5
"""Rounds of turns; and how often all are assembled anew where a side seems to be slower."""
TURN = 0.4
"""Seconds of a side's turn, or a step where one takes longer."""
LIMIT = 1200.0
"""Seconds of a call of the ranks."""


@dataclass(frozen=True)
class DrawnSetting:
    """A job and where it runs: all that its seed says."""

    seed: int

    @property
    def ranks(self) -> tuple[int, int, int]:
        """Nodes, the ranks of each, and megabits a second between nodes."""
        draw = random.Random(f"ranks {self.seed}")
        nodes, each = draw.choice([(1, 2), (1, 4), (2, 1), (2, 2), (2, 2)])
        return nodes, each, draw.choice([50, 200, 200, 1000])

    def registry(self, folder: Path, topology: Path, samples: int) -> dict[str, Any]:
        """Plain TorchRec's."""
        draw = random.Random(f"job {self.seed}")
        nodes, each, _ = self.ranks
        dim, stay = draw.choice([8, 16, 32, 64, 128]), draw.choice([0.5, 0.9, 0.97])
        bags = [_bag(draw, f"f_{number}", stay) for number in range(draw.randint(2, 12))]
        most = draw.choice([0, 0, 1, 2, 4])
        sequences = [_sequence(draw, f"h_{number}", stay) for number in range(most)]
        kinds = [{"use": "transformer", "heads": 2}, "attention", "mean", "sum"]
        pooling = {one["name"]: draw.choice(kinds) for one in sequences}
        model: dict[str, Any] = {"use": "dlrm"}
        values: dict[str, Any] = {}
        if sequences:
            values["pooling"] = pooling
            asks = [name for name, kind in pooling.items() if kind == "attention"]
            model = {"use": "sequence_dlrm", "query": dict.fromkeys(asks, "f_0")}
        dataset = {
            "use": "sessions",
            "samples": samples,
            "samples_per_session": draw.choice([1, 2, 4, 8, 16]),
            "features": bags + sequences,
        }
        train = {"device": "cpu", "threads": 1, "ranks": nodes * each}
        if draw.random() < 0.5:
            reader = {"use": "local", "sessions": "whole"}
            values |= {"etl": ["cluster_by_session"], "reader": reader}
        return values | {
            "plugins": ["recd_dlrm", "recd_dedup", "recd_flexshard", "recd_scars"],
            "folder": str(folder),
            "dataset": dataset,
            "model": model | {"embedding_dim": dim, "bottom": [64, dim], "top": [64]},
            "topology": str(topology),
            "train": train | {"batch_size": draw.choice([64, 128, 256, 512])},
        }

    @property
    def name(self) -> str:
        job = self.registry(Path(), Path(), 1)
        nodes, each, mbit = self.ranks
        link = f", {mbit} mbit" if nodes > 1 else ""
        sequences = len(job.get("pooling", ()))
        bags = len(job["dataset"]["features"]) - sequences
        order = "clustered" if "etl" in job else "in time"
        return (
            f"{self.seed}: {nodes} x {each} ranks{link}; {bags} bags, {sequences} sequences, D "
            f"{job['model']['embedding_dim']}, B {job['train']['batch_size']}, S "
            f"{job['dataset']['samples_per_session']} {order}"
        )


def _bag(draw: random.Random, name: str, stay: float) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [{"kind": "user", "stay": stay}, {"kind": "item"}]
    return {
        "name": name,
        "num_ids": int(10 ** draw.uniform(2, 5.7)),
        "skew": draw.uniform(0.7, 1.3),
        "length": draw.choice([1.0, 1.0, 3.0, 10.0]),
        **draw.choice(kinds),
    }


def _sequence(draw: random.Random, name: str, stay: float) -> dict[str, Any]:
    return {
        "name": name,
        "num_ids": int(10 ** draw.uniform(3, 5.5)),
        "skew": draw.uniform(0.7, 1.3),
        "length": draw.choice([5.0, 20.0, 50.0]),
        "kind": "user",
        "stay": stay,
        "sequence": True,
        "shift": draw.choice([False, True]),
    }


def automatic(own: Mapping[str, Any]) -> dict[str, Any]:
    """The same job, whose every part that can choose does, and which is read as it was."""
    return {
        **own,
        "dedup": {"use": "exact", "groups": "auto"},
        "sharding": {"use": "flexshard", "goal": "auto", "budget_gb": BUDGET_GB},
        "cache": {"use": "scars", "size": "plan"},
    }


class Timed(NamedTuple):
    """A side of a setting, beside TorchRec's own plan."""

    ratio: float
    """How many times as fast it was, in the median of the rounds."""
    spread: float
    note: str


def timed(setting: DrawnSetting, samples: int) -> dict[str, Timed]:
    """Every other side of a setting."""
    nodes, each, mbit = setting.ranks
    with (
        tempfile.TemporaryDirectory(prefix="recd-bench-") as temporary,
        Network(nodes, mbit) as network,
        ClusterRanks(network, each) as ranks,
    ):
        topology = Path(temporary) / "topology.yaml"
        save_topology(ranks.run(measured_topology, each)[0], topology)
        own = setting.registry(Path(temporary) / "data", topology, samples)
        goal, here = AdviceGoal(budget_gb=BUDGET_GB), ranks.world_size
        advice = advise(Registry.load(own), goal, ranks_here=here, with_what_ifs=False)
        sides = {OWN: own, AGAIN: own, AUTO: automatic(own), ADVISED: advice.values}
        for values in sides.values():
            load(values).prepare()  # here, so that ranks find tables that are written
        found = _in_turns(ranks, sides)
        if min(found[side].ratio for side in (AUTO, ADVISED)) < NEVER_BELOW:
            again = [_in_turns(ranks, sides) for _ in range(ANEW)]
            found = {side: _median([one[side] for one in again]) for side in found}
    kept = f"; kept: {', '.join(advice.walk.kept) or 'nothing'}"
    found[ADVISED] = found[ADVISED]._replace(note=found[ADVISED].note + kept)
    return found


def _median(anew: Sequence[Timed]) -> Timed:
    """Of several times that a side was assembled."""
    ratios = [one.ratio for one in anew]
    least, most = min(ratios), max(ratios)
    middle = sorted(anew)[len(anew) // 2]
    note = f"{middle.note}, the median of {len(anew)} assemblies ({least:.2f} to {most:.2f})"
    return Timed(middle.ratio, spread(ratios), note)


def _in_turns(ranks: ClusterRanks, sides: Mapping[str, dict[str, Any]]) -> dict[str, Timed]:
    if refused := ranks.run(assemble_sides, sides, limit=LIMIT)[0]:
        raise CapabilityError(f"a drawn setting has refused sides: {refused}")
    look = ranks.run(time_sides, [*sides], 1, 2, limit=LIMIT)[0]
    steps = max(1, round(TURN / max(seconds for (seconds,) in look)))
    every = ranks.run(time_sides, [*sides], ROUNDS, steps, limit=LIMIT)[0]
    ranks.run(drop_sides, [*sides])
    seconds = dict(zip(sides, every, strict=True))
    twice = [(one + other) / 2 for one, other in zip(seconds[OWN], seconds[AGAIN], strict=True)]
    found = {}
    for side in (AGAIN, AUTO, ADVISED):
        base = seconds[OWN] if side == AGAIN else twice
        ratios = [theirs / ours for theirs, ours in zip(base, seconds[side], strict=True)]
        ours, theirs = (1e3 * statistics.median(one) for one in (seconds[side], base))
        note = f"{ours:.0f} ms a step for {theirs:.0f}, in {ROUNDS} rounds of {steps} steps"
        found[side] = Timed(statistics.median(ratios), spread(ratios), note)
    return found


def measure(quick: bool, seeds: Sequence[int] = ()) -> Report:
    """Of each seed how fast each side is, and the least of all."""
    seeds = seeds or (QUICK_SEEDS if quick else SEEDS)
    settings = {
        "budget": f"{BUDGET_GB} GB a rank",
        "cluster": EMULATED,
    }
    if missing := available():
        print(f"no emulated cluster, so nothing is measured: it needs {missing}", file=sys.stderr)
        return Report(figures=[], settings=settings)
    figures: list[Figure] = []
    ratios: dict[str, list[float]] = {AUTO: [], ADVISED: [], AGAIN: []}
    for setting in map(DrawnSetting, seeds):
        for side, found in timed(setting, samples=4_096 if quick else 16_384).items():
            figure = Figure(
                name=f"{side}: drawn {setting.name}",
                value=found.ratio,
                unit="times as fast",
                target=None if side == AGAIN else NEVER_BELOW,
                spread=found.spread,
                note=found.note,
            )
            print(f"{figure.name}: {found.ratio:.2f}; {found.note}", file=sys.stderr, flush=True)
            figures.append(figure)
            ratios[side].append(found.ratio)
    for side, every in ratios.items():
        figures.append(
            Figure(
                name=f"{side}: the least of {len(every)} drawn settings",
                value=min(every),
                unit="times as fast",
                target=None if side == AGAIN else NEVER_BELOW,
                note=f"as {OWN}; the median {statistics.median(every):.2f}, the most "
                f"{max(every):.2f}",
            )
        )
    return Report(figures=figures, settings=settings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seeds", nargs="+", type=int, default=())
    arguments, rest = parser.parse_known_args()
    main("advise.drawn", partial(measure, seeds=arguments.seeds), rest)
