"""What RecD does to learning: tables clustered or by time, batches deduplicated or not.

    python -m benchmarks.accuracy [--quick] [--json] [--figure PATH]

Each run trains two ranks through the trainer, evaluates on later sessions as it goes, and
leaves a metrics.jsonl. Deduplication must change nothing beyond the order in which floats
are added; clustering changes which samples meet in a batch, and its effect is shown as it
is, beside the spread over seeds. MovieLens is read from ../shared/data, where it is there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, Report, main, spread
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.training import train_quietly

__all__ = ["AccuracyCurve", "Run", "compare", "draw"]

MOVIELENS = Path(__file__).parents[2] / "shared" / "data" / "ml100k" / "ml-100k.inter"

DEADLINE = 1800.0

TOLERANCE = 1e-3
"""How far losses may differ. A step's losses agree within 1e-6: sums over unique
samples add floats in another order. Training carries such differences on, and they grow with every
step."""

ORDERS: dict[str, dict[str, Any]] = {
    "by time": {},
    "clustered": {"etl": ["cluster_by_session"], "reader": {"use": "local", "sessions": "whole"}},
    "clustered, rows shuffled": {"etl": ["cluster_by_session"]},
}
"""The last is RecD's table under the shuffling of any table: within stripes, row by row."""

DATASETS: dict[str, dict[str, Any]] = {
    "sessions": {
        "dataset": {"use": "sessions", "samples": 320_000},
        "model": {"use": "sequence_dlrm", "embedding_dim": 32},
        "pooling": {"history": {"use": "attention"}},
        "train": {"batch_size": 512, "steps": 312, "eval_every": 52},
    },
    "movielens": {
        "dataset": {"use": "movielens", "path": str(MOVIELENS), "history": "frozen"},
        "model": {"use": "sequence_dlrm", "embedding_dim": 16, "bottom": [32], "top": [64, 32]},
        "pooling": {"history": {"use": "transformer", "heads": 2}},
        "train": {"batch_size": 256, "steps": 350, "eval_every": 35},
    },
}
"""One epoch of the generated sessions, two of MovieLens."""


@dataclass(frozen=True)
class Run:
    """One training."""

    dataset: str
    order: str
    dedup: bool
    seed: int

    def registry(self, folder: Path, steps: int | None) -> dict[str, Any]:
        registry: dict[str, Any] = {
            "plugins": ["recd_dlrm", "recd_dedup"],
            "folder": str(folder / "data"),
            **DATASETS[self.dataset],
            **ORDERS[self.order],
        }
        name = f"{self.dataset}-{self.order}-{'ikjt' if self.dedup else 'kjt'}-{self.seed}"
        train = {"ranks": 2, "device": "cpu", "seed": self.seed, "run": str(folder / name)}
        train |= {"log_every": 5, "checkpoint_every": 0}
        registry |= {
            "train": registry["train"] | train,
            "sharding": {"use": "torchrec", "search": "greedy"},
        }
        if steps is not None:
            registry["train"] |= {
                "steps": steps,
                "eval_every": max(1, steps // 4),
                "eval_batches": min(8, steps),
            }
            if registry["dataset"]["use"] == "sessions":
                samples = 3 * steps * registry["train"]["batch_size"]
                registry["dataset"] = registry["dataset"] | {"samples": samples}
        if self.dedup:
            registry["dedup"] = {"use": "exact", "weigh": "bytes"}
        return registry


@dataclass(frozen=True)
class AccuracyCurve:
    """The lines of a run's metrics.jsonl of one kind (train or test)."""

    steps: Sequence[int]
    losses: Sequence[float]
    nes: Sequence[float]
    aucs: Sequence[float]

    @classmethod
    def read(cls, run: Path, kind: str) -> AccuracyCurve:
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        kept = [line for line in lines if line["kind"] == kind]
        return cls(*([line[name] for line in kept] for name in ("step", "loss", "ne", "auc")))

    def gap(self, other: AccuracyCurve) -> float:
        """The largest difference of their losses."""
        pairs = zip(self.losses, other.losses, strict=True)
        return max(abs(ours - theirs) for ours, theirs in pairs)


Curves = Mapping[Run, tuple[AccuracyCurve, AccuracyCurve]]
"""Each run's curves in training and on the test split."""


def measure(quick: bool, figure: Path | None = None) -> Report:
    names = [name for name in DATASETS if name != "movielens" or MOVIELENS.exists()]
    seeds = range(1 if quick else 3)
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder, GlooPool() as pool:
        curves = trained(Path(folder), pool, names, seeds, steps=60 if quick else None)
    if figure is not None:
        draw(curves, figure)
    settings = {"ranks": 2, "seeds": len(seeds), "steps": "60" if quick else "one or two epochs"}
    return Report(figures=compare(curves), settings=settings)


def trained(
    folder: Path, pool: GlooPool, datasets: Sequence[str], seeds: Sequence[int], steps: int | None
) -> Curves:
    """The curves of every order of these datasets, deduplicated and not; by default all steps."""
    curves = {}
    for dataset, order, seed, dedup in product(datasets, ORDERS, seeds, (False, True)):
        run = Run(dataset, order, dedup, seed)
        registry = run.registry(folder, steps)
        load(registry).prepare()
        with contextlib.redirect_stdout(sys.stderr):
            pool.run(train_quietly, registry, deadline=DEADLINE)
        into = Path(registry["train"]["run"])
        curves[run] = AccuracyCurve.read(into, "train"), AccuracyCurve.read(into, "test")
    return curves


def compare(curves: Curves) -> list[Figure]:
    figures = []
    for dataset in dict.fromkeys(run.dataset for run in curves):
        seeds = sorted({run.seed for run in curves if run.dataset == dataset})
        figures += [_dedup(curves, dataset, order, seeds) for order in ORDERS]
        by_time, *others = ORDERS
        figures += [_order(curves, dataset, by_time, order, seeds) for order in others]
    return figures


def _dedup(curves: Curves, dataset: str, order: str, seeds: Sequence[int]) -> Figure:
    """What deduplication changes: at most what float order does."""
    gaps, first = [], []
    for seed in seeds:
        plain, ours = (curves[Run(dataset, order, dedup, seed)] for dedup in (False, True))
        gaps += [ours[kind].gap(plain[kind]) for kind in (0, 1)]
        first.append(abs(ours[0].losses[0] - plain[0].losses[0]))
    return Figure(
        name=f"{dataset}, {order}: largest difference of loss, IKJT and KJT",
        value=max(gaps),
        unit="",
        target=TOLERANCE,
        at_most=True,
        note=f"all lines of training and test; {max(first):.1e} over the first 5 steps, "
        "then rounding in another order, carried on by training",
    )


def _order(curves: Curves, dataset: str, base: str, order: str, seeds: Sequence[int]) -> Figure:
    """What the order of rows changes, with deduplication: not a target, but shown."""

    def last(order: str) -> list[tuple[float, float]]:
        tests = [curves[Run(dataset, order, True, seed)][1] for seed in seeds]
        return [(test.aucs[-1], test.nes[-1]) for test in tests]

    ours, theirs = last(order), last(base)
    auc, ne = (statistics.mean(side) for side in zip(*ours, strict=True))
    base_auc, base_ne = (statistics.mean(side) for side in zip(*theirs, strict=True))
    return Figure(
        name=f"{dataset}, {order}: AUC on later sessions",
        value=auc,
        unit="",
        baseline=base_auc,
        spread=spread([one for one, _ in ours]),
        note=f"NE {ne:.4f}, {base} {base_ne:.4f}; over {len(seeds)} seeds the AUC of each "
        f"lies in {_range(ours)} and {_range(theirs)}",
    )


def _range(values: Sequence[tuple[float, float]]) -> str:
    aucs = [auc for auc, _ in values]
    return f"{min(aucs):.4f} to {max(aucs):.4f}"


def draw(curves: Curves, path: Path) -> None:
    """Write a PNG: loss in training and AUC on the test split, a row for each dataset."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    datasets = list(dict.fromkeys(run.dataset for run in curves))
    figure, axes = pyplot.subplots(
        len(datasets), 2, figsize=(11, 3.6 * len(datasets)), layout="constrained", squeeze=False
    )
    colors = dict(zip(ORDERS, ("C0", "C1", "C2"), strict=True))
    for row, dataset in zip(axes, datasets, strict=True):
        for run, (training, test) in curves.items():
            if run.dataset != dataset or run.seed:
                continue
            style = {"color": colors[run.order], "alpha": 0.9}
            # Thin dark dashes on a thick pale line: where they agree, both are seen.
            style |= {"ls": "--", "lw": 1.2} if run.dedup else {"lw": 4, "alpha": 0.35}
            label = f"{run.order}, {'IKJT' if run.dedup else 'KJT'}"
            row[0].plot(training.steps, training.losses, label=label, **style)
            row[1].plot(test.steps, test.aucs, label=label, **style)
        row[0].set_ylabel(f"{dataset}: loss in training")
        row[1].set_ylabel("AUC on later sessions")
        row[1].legend(fontsize="small")
        for axis in row:
            axis.set_xlabel("step")
            axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--figure", type=Path, default=None)
    arguments, rest = parser.parse_known_args()
    main("accuracy", partial(measure, figure=arguments.figure), rest)
