"""Runs that report what was forecast and what happened: dedupe factor, bytes, served lookups."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Figure
from benchmarks.honesty.tables import RANKS, Generated, HonestyTable, Real
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool

__all__ = ["TrainedTable", "trained_figures", "trained_tables"]

STEPS = 64
KINDS = {
    "lookups served by tiers": ("lookups that", "points", 2.0, 5.0),
    "dedupe factor": ("dedupe factor", "%", 5.0, 5.0),
    "bytes of all collectives": ("bytes of collectives", "%", 5.0, 5.0),
}
"""For each row: the names of its forecasts in a run's summary, the unit in which facts differ from
them, and by how much they may differ in the median and at worst."""


@dataclass(frozen=True, kw_only=True)
class TrainedTable:
    """A table, and what a registry switches on to train it."""

    table: HonestyTable
    clustered: bool = True
    """Whether the table is clustered by session, and batches keep sessions whole."""
    planner: Mapping[str, Any]
    """The slot `sharding` or `cache`."""

    @property
    def name(self) -> str:
        use = next(iter(self.planner.values()))["use"]
        return f"{self.table.name}, {'clustered' if self.clustered else 'as it lies'}, {use}"

    def registry(self, folder: Path) -> dict[str, Any]:
        values = self.table.registry(folder)
        values |= {
            "plugins": ["recd_dlrm", "recd_dedup", "recd_scars", "recd_flexshard"],
            "dedup": {"use": "exact", "groups": [["history"]]},
            "model": {"use": "sequence_dlrm", "embedding_dim": 64, "bottom": [64], "top": [16]},
            **self.planner,
        }
        if self.clustered:
            values["etl"] = [{"use": "cluster_by_session"}]
            values["reader"] |= {"sessions": "whole"}
        values["train"] |= {
            "steps": STEPS,
            "log_every": 8,
            "eval_batches": 1,
            "batch_size": 128,
            "run": str(folder / "runs" / self.name.replace(" ", "_")),
        }
        return values


def trained_tables(data: Path, quick: bool) -> Iterator[TrainedTable]:
    """Clustered and not, S 1 to 30, stationary and drifting; caches and FlexShard's tiers."""
    cache = {"cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "hot_batches": False}}
    flex = {"sharding": {"use": "flexshard", "tiers": 2, "goal": "budget", "budget_gb": 0.0005}}
    cases = [
        (1.05, 4.0, 0.0, True, cache),
        (1.2, 10.0, 0.01, False, flex),
        (0.8, 30.0, 0.0, True, flex),
        (0.9, 1.0, 0.01, True, cache),
        (1.3, 16.0, 0.0, False, cache),
        (1.05, 30.0, 0.01, True, cache),
    ]
    for number, (exponent, size, swapped, clustered, planner) in enumerate(
        cases[: 2 if quick else 6]
    ):
        table = Generated(
            name=f"zipf {exponent} S {size:g}{' drifting' if swapped else ''}".replace(" ", "_"),
            exponent=exponent,
            samples_per_session=size,
            swapped=swapped,
            samples=40_000,
            rows=20_000,
            seed=100 + number,
        )
        yield TrainedTable(table=table, clustered=clustered, planner=planner)
    clicks, ratings = data / "yoochoose/clicks.tsv", data / "ml100k/ml-100k.inter"
    if clicks.exists() and not quick:
        use: Mapping[str, Any] = {"use": "yoochoose", "path": str(clicks)}
        yield TrainedTable(table=Real(name="yoochoose", use=use), planner=cache)
    if ratings.exists() and not quick:
        use = {"use": "movielens", "path": str(ratings)}
        yield TrainedTable(table=Real(name="ml100k", use=use), planner=flex)


def trained_figures(data: Path, folder: Path, quick: bool) -> Iterator[Figure]:
    """A row for each kind of forecast: by how much the runs' facts are off, in the median."""
    found: dict[str, list[tuple[str, float, str]]] = {kind: [] for kind in KINDS}
    tables = list(trained_tables(data, quick))
    with GlooPool(deadline=600) as pool:
        for one in tables:
            with contextlib.redirect_stdout(sys.stderr):  # what ranks print is printed here
                forecasts = pool.run(_train, one.registry(folder), world_size=RANKS)[0]
            for each in forecasts:
                for kind, (begins, unit, *_) in KINDS.items():
                    if begins in each["what"] and each["forecast"]:
                        off = 100 * abs(float(each["fact"]) - float(each["forecast"]))
                        off /= float(each["forecast"]) if unit == "%" else 1.0
                        words = f"{each['what']}: {each['forecast']:.4g}, {each['fact']:.4g} came"
                        found[kind].append((one.name, off, words))
                        print(f"{one.name}: {words}", file=sys.stderr, flush=True)
    for kind, every in found.items():
        if every:
            yield from _figures(kind, every)


def _figures(kind: str, every: Sequence[tuple[str, float, str]]) -> Iterator[Figure]:
    _, unit, middle, at_worst = KINDS[kind]
    name, most, words = max(every, key=lambda one: one[1])
    for which, value, target, note in (
        ("the median", statistics.median(off for _, off, _ in every), middle, ""),
        ("the worst", most, at_worst, f"; {name}: {words}"),
    ):
        yield Figure(
            name=f"{kind}, forecast against trained: {which}",
            value=value,
            unit=unit,
            target=target,
            at_most=True,
            note=f"of {len(every)}{note}",
        )


def _train(values: dict[str, Any]) -> list[dict[str, Any]]:
    from recd_plugins.trainer.run import train

    found: list[dict[str, Any]] = train(load(values), torch.device("cpu"))["forecasts"]
    return found
