"""`make demo`: plain TorchRec beside what the plugins make of the same job, in one table.

    python -m benchmarks.demo [--quick] [--json]

Two ranks (on CUDA one for each device, if there are fewer) and generated sessions throughout.
registry.yaml's small model is trained by hand, by `recd train`, and with each plugin; the paper's
RM1 at a sixth of its sizes, where embeddings and poolings are most of a step, without RecD and with
it. By hand it is trained twice, before the plugins and after them: what the two differ by is the
machine's. A quick run takes fewer steps, trains by hand once, and leaves the plugins on the small
model out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import models
from benchmarks.harness import ALLOCATOR, Figure, Limit, Report, conditions_of, print_json
from benchmarks.limits import least_step
from recd_plugins.launch.launcher import launch
from recd_plugins.launch.machine_cores import cores_of_each
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
PLAIN_OF = {"with RecD": "recd train", "RM1, RecD": "RM1, plain"}
QUICK = ("train.steps=60", "dataset.samples=64_000")
"""The small model's steps and table in a quick run."""
RM1_SCALE = 1 / 6
PLAIN = ("dedup=none", "train.bags_of_one=false")
"""RM1 as TorchRec trains it."""
PROFILED = ("train.steps=10", "train.log_every=3", "train.profile_steps=3", "train.eval_batches=1")
"""A short run of plain RM1, whose step says what RecD can save of it."""


def rm1_steps(quick: bool) -> int:
    return 12 if quick else 30


def rm1(folder: Path, quick: bool) -> list[DemoSide]:
    """RM1 without RecD, with it, and without it under the profiler, on one table."""
    registry = models.registry("rm1", RM1_SCALE)
    registry["folder"] = "data"
    registry["dataset"]["samples"] = 24_000
    steps = rm1_steps(quick)
    registry["train"] |= {"ranks": 2, "steps": steps, "log_every": steps // 3, "eval_batches": 4}
    path = folder / "rm1.yaml"
    path.write_text(yaml.safe_dump(registry))
    sides = (
        ("RM1, plain", (*PLAIN, "train.run=runs/rm1")),
        ("RM1, RecD", ("train.run=runs/rm1_recd",)),
        ("RM1, profiled", (*PLAIN, "train.run=runs/rm1_profiled", *PROFILED)),
    )
    return [DemoSide(name=name, overrides=overrides, registry=path) for name, overrides in sides]


def num_ranks() -> int:
    """registry.yaml's; on CUDA as many as have a device, if these are fewer."""
    stack = load(REGISTRY)
    asked = stack.registry.train.ranks
    return min(asked, torch.cuda.device_count()) if stack.device == "cuda" else asked


def by_hand(folder: Path, overrides: Sequence[str], quiet: bool) -> dict[str, Any]:
    ranks = num_ranks()
    result = folder / "result.json"
    failure = launch(
        ["benchmarks.by_hand", str(REGISTRY), str(result), *overrides],
        ranks,
        threads=cores_of_each(ranks),
        quiet=quiet,
    )
    if failure is not None:
        raise SystemExit(f"error: {failure}")
    summary: dict[str, Any] = json.loads(result.read_text())
    return summary


def by_registry(side: DemoSide, quiet: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "recd_plugins", "train", "--registry", str(side.registry)]
    command += ["--ranks", str(num_ranks())]
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
    parser.add_argument("--quick", action="store_true", help="fewer steps and rows")
    options = parser.parse_args()
    quiet, quick = options.json, options.quick
    os.environ.update(ALLOCATOR)  # of both sides' ranks
    load = os.getloadavg()[0]
    console = Console(quiet=quiet)
    overrides = QUICK if quick else ()
    small = [
        dataclasses.replace(side, overrides=(*side.overrides, *overrides))
        for side in (SIDES[:1] if quick else SIDES)
    ]
    rows: dict[str, dict[str, Any]] = {}
    plain: list[dict[str, Any]] = []

    def train_by_hand() -> None:
        console.rule(BY_HAND)
        plain.append(by_hand(folder, overrides, quiet))

    with tempfile.TemporaryDirectory(prefix="recd-demo-") as name:
        folder = Path(name)
        # The first run writes the table that the others read.
        *rm1_sides, profiled = rm1(folder, quick)
        for side in (*small, *rm1_sides):
            console.rule(side.name)
            rows[side.name] = by_registry(side, quiet)
            if side in (small[0], small[-1]) and not (quick and plain):
                train_by_hand()
        rows = {BY_HAND: of_runs(plain), **rows}
        parts = by_registry(profiled, quiet)["parts_ms"] if quiet and not quick else {}
    if quiet:
        report = Report(figures=[*figures(rows, parts)])
        conditions = conditions_of(report, load=load, settings={"quick": quick})
        print_json("demo", conditions, report.figures)
    else:
        console.print(shown(rows, quick))


def of_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last of several runs of one job, with the mean rate of all."""
    rates = [run["samples_per_second"] for run in runs]
    return {**runs[-1], "samples_per_second": sum(rates) / len(rates), "rates": rates}


def figures(rows: Mapping[str, Mapping[str, Any]], parts: Mapping[str, float]) -> Iterator[Figure]:
    """The table's columns that say what a run costs and what it learned; `parts` is the profile of
    plain RM1's step, empty in a quick run."""
    for name, summary in rows.items():
        limits = _limits(name, rows, parts)
        for what, value, unit in (
            ("samples/s", summary["samples_per_second"], "samples/s"),
            ("sent in a step", _sent(summary), "MB"),
            ("peak memory of a rank", summary["peak_memory_mib"], "MiB"),
            ("test NE", summary["test"]["ne"], "NE"),
        ):
            yield Figure(
                name=f"{name}: {what}",
                value=value,
                unit=unit,
                at_most=what != "samples/s",
                limit=limits.get(what),
            )


def _limits(
    name: str, rows: Mapping[str, Mapping[str, Any]], parts: Mapping[str, float]
) -> dict[str, Limit]:
    """Of a row's columns: of `recd train` the job written by hand, of RecD's rows the plain one."""
    if name == "recd train":
        hand = rows[BY_HAND]
        values = hand["samples_per_second"], _sent(hand), hand["peak_memory_mib"]
        columns = ("samples/s", "sent in a step", "peak memory of a rank")
        of = "the same job written by hand with TorchRec alone, in the same run"
        return {what: Limit(value=one, of=of) for what, one in zip(columns, values, strict=True)}
    if name not in PLAIN_OF:
        return {}
    plain, factor = rows[PLAIN_OF[name]], rows[name]["cost"]["dedupe_factor"]
    sent = f"plain TorchRec's bytes over the DedupeFactor {factor:.2f}, as if it held for all ids"
    limits = {"sent in a step": Limit(value=_sent(plain) / factor, of=sent)}
    if name == "RM1, RecD" and parts:
        limits["samples/s"] = Limit(
            value=plain["samples_per_second"] / least_step(parts, 1.0, factor),
            of="the plain step's profile: pooling, lookups, exchanges and waiting over the "
            f"DedupeFactor {factor:.2f}, all else as it is; expanding and reading are left out",
        )
    return limits


def _sent(summary: Mapping[str, Any]) -> float:
    """MB through all-to-alls, of a rank and step."""
    return float(sum(summary["cost"]["traffic"]["all_to_all"].values()) / 1e6)


def shown(rows: Mapping[str, Mapping[str, Any]], quick: bool) -> Table:
    train = load(REGISTRY, QUICK if quick else ()).registry.train
    *_, last = (name for name in rows if not name.startswith("RM1"))
    rates = " and ".join(f"{rate:,.0f}" for rate in rows[BY_HAND]["rates"])
    caption = (
        f"x: of plain TorchRec's samples/s, on the small model {rates}\n"
        "sent: MB through all-to-alls, a rank and step; MiB: peak memory of a rank"
    )
    if {"with FlexShard", "with SCARS"} <= rows.keys():
        caption += (
            "\nFlexShard and SCARS send less, which saves time on slow networks, not within\n"
            "one machine: recd advise says what pays on which cluster"
        )
    table = Table(
        title=f"{train.steps} steps of {train.batch_size} samples on each of {num_ranks()} ranks; "
        f"RM1 at 1/{1 / RM1_SCALE:.0f} of its sizes: {rm1_steps(quick)} steps",
        caption=caption,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for column in ("samples/s", "x", "sent", "MiB", "loss", "test NE", "AUC"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, summary in rows.items():
        own = "RM1, plain" if name.startswith("RM1") else BY_HAND
        plain = rows[own]["samples_per_second"]
        table.add_row(
            name,
            f"{summary['samples_per_second']:,.0f}",
            f"{summary['samples_per_second'] / plain:.2f}",
            f"{_sent(summary):.2f}",
            f"{summary['peak_memory_mib']:,.0f}",
            f"{summary['train']['loss']:.4f}",
            f"{summary['test']['ne']:.4f}",
            f"{summary['test']['auc']:.3f}",
            end_section=name == last,
        )
    return table


if __name__ == "__main__":
    main()
