"""`make demo`: plain TorchRec beside what the plugins make of the same job, in one table.

    python -m benchmarks.demo [--json]

Two ranks and generated sessions throughout. registry.yaml's small model is trained by hand, by
`recd train`, and with each plugin; the paper's RM1 at a sixth of its sizes, where embeddings and
poolings are most of a step, without RecD and with it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import models
from benchmarks.harness import ALLOCATOR, Figure, Report, conditions_of, print_json
from recd_plugins.launch.command import launch
from recd_plugins.stack import load

REGISTRY = Path("registry.yaml")
BY_HAND = "plain TorchRec"


@dataclass(frozen=True, kw_only=True)
class DemoSide:
    """A run of `recd train`: a row of the table."""

    name: str
    overrides: tuple[str, ...] = ()
    registry: Path = REGISTRY

    def summary(self) -> Path:
        run = load(self.registry, self.overrides).registry.train.run
        return run / "summary.json"


RECD = (
    "plugins=[recd_dlrm, recd_dedup]",
    "etl=[cluster_by_session]",
    "reader={use: local, sessions: whole}",
    "dedup=exact",
    "train.run=runs/recd",
)
FLEXSHARD = (
    "plugins=[recd_dlrm, recd_flexshard]",
    "sharding={use: flexshard, goal: memory_neutral}",
    "train.run=runs/flexshard",
)
SCARS = (
    "plugins=[recd_dlrm, recd_scars]",
    "cache={use: scars, size: hit_rate, hit_rate: 0.9}",
    "train.run=runs/scars",
)
SIDES = (
    DemoSide(name="recd train"),
    DemoSide(name="with RecD", overrides=RECD),
    DemoSide(name="with FlexShard", overrides=FLEXSHARD),
    DemoSide(name="with SCARS", overrides=SCARS),
)
RM1_SCALE, RM1_STEPS = 1 / 6, 30


def rm1(folder: Path) -> list[DemoSide]:
    """RM1 without RecD and with it, on one table."""
    registry = models.registry("rm1", RM1_SCALE)
    registry["folder"] = "data"
    registry["dataset"]["samples"] = 24_000
    registry["train"] |= {"ranks": 2, "steps": RM1_STEPS, "log_every": 10, "eval_batches": 4}
    path = folder / "rm1.yaml"
    path.write_text(yaml.safe_dump(registry))
    return [
        DemoSide(name="RM1, plain", overrides=("dedup=none", "train.run=runs/rm1"), registry=path),
        DemoSide(name="RM1, RecD", overrides=("train.run=runs/rm1_recd",), registry=path),
    ]


def by_hand(folder: Path, quiet: bool) -> dict[str, Any]:
    ranks = load(REGISTRY).registry.train.ranks
    result = folder / "result.json"
    failure = launch(
        ["benchmarks.by_hand", str(REGISTRY), str(result)],
        ranks,
        threads=max(1, (os.cpu_count() or 1) // ranks),
        quiet=quiet,
    )
    if failure is not None:
        raise SystemExit(f"error: {failure}")
    summary: dict[str, Any] = json.loads(result.read_text())
    return summary


def by_registry(side: DemoSide, quiet: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "recd_plugins", "train", "--registry", str(side.registry)]
    subprocess.run(
        [*command, *side.overrides, *(["--json"] if quiet else [])],
        check=True,
        stdout=subprocess.DEVNULL if quiet else None,
    )
    summary: dict[str, Any] = json.loads(side.summary().read_text())
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    quiet = parser.parse_args().json
    os.environ.update(ALLOCATOR)  # of both sides' ranks
    load = os.getloadavg()[0]
    console = Console(quiet=quiet)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="recd-demo-") as name:
        folder = Path(name)
        # The first run writes the table that the others read.
        for side in (*SIDES, *rm1(folder)):
            console.rule(side.name)
            rows[side.name] = by_registry(side, quiet)
        console.rule(BY_HAND)
        rows = {BY_HAND: by_hand(folder, quiet), **rows}
    if quiet:
        report = Report(figures=[*figures(rows)])
        print_json("demo", conditions_of(report, load=load), report.figures)
    else:
        console.print(shown(rows))


def figures(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Figure]:
    """The table's columns that say what a run costs and what it learned."""
    for name, summary in rows.items():
        rate = summary["samples_per_second"]
        yield Figure(name=f"{name}: samples/s", value=rate, unit="samples/s")
        yield Figure(name=f"{name}: sent in a step", value=_sent(summary), unit="MB")
        peak = summary["peak_memory_mib"]
        yield Figure(name=f"{name}: peak memory of a rank", value=peak, unit="MiB")
        yield Figure(name=f"{name}: test NE", value=summary["test"]["ne"], unit="NE")


def _sent(summary: Mapping[str, Any]) -> float:
    """MB through all-to-alls, of a rank and step."""
    return float(sum(summary["cost"]["traffic"]["all_to_all"].values()) / 1e6)


def shown(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    train = load(REGISTRY).registry.train
    table = Table(
        title=f"{train.steps} steps of {train.batch_size} samples on each of {train.ranks} ranks; "
        f"RM1 at 1/{1 / RM1_SCALE:.0f} of its sizes: {RM1_STEPS} steps",
        caption="sent: MB through all-to-alls, a rank and step; MiB: peak memory of a rank",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for column in ("samples/s", "sent", "MiB", "loss", "test NE", "AUC"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, summary in rows.items():
        table.add_row(
            name,
            f"{summary['samples_per_second']:,.0f}",
            f"{_sent(summary):.2f}",
            f"{summary['peak_memory_mib']:,.0f}",
            f"{summary['train']['loss']:.4f}",
            f"{summary['test']['ne']:.4f}",
            f"{summary['test']['auc']:.4f}",
            end_section=name == SIDES[-1].name,
        )
    return table


if __name__ == "__main__":
    main()
