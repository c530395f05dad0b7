"""`make demo`: plain TorchRec by hand, `recd train` on registry.yaml, and the same with RecD.

    python -m benchmarks.demo [--json]

Two ranks, generated session data, a few hundred steps each, one table. As parts of the
project land, each adds its row.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import ALLOCATOR
from recd_plugins.stack import load
from recd_plugins.trainer.launch import launch

REGISTRY = "registry.yaml"
RECD = [
    "plugins=[recd_dlrm, recd_dedup]",
    "etl=[cluster_by_session]",
    "reader={use: local, sessions: whole}",
    "dedup=exact",
    "train.run=runs/recd",
]
"""What RecD adds to registry.yaml."""


def by_hand(quiet: bool) -> dict[str, Any]:
    ranks = load(REGISTRY).registry.train.ranks
    with tempfile.TemporaryDirectory(prefix="recd-demo-") as folder:
        result = Path(folder) / "result.json"
        failure = launch(
            ["benchmarks.by_hand", REGISTRY, str(result)],
            ranks,
            threads=max(1, (os.cpu_count() or 1) // ranks),
            quiet=quiet,
        )
        if failure is not None:
            raise SystemExit(f"error: {failure}")
        said: dict[str, Any] = json.loads(result.read_text())
        return said


def by_registry(quiet: bool, overrides: Sequence[str] = ()) -> dict[str, Any]:
    command = [sys.executable, "-m", "recd_plugins", "train", "--registry", REGISTRY, *overrides]
    subprocess.run(
        [*command, "--json"] if quiet else command,
        check=True,
        stdout=subprocess.DEVNULL if quiet else None,
    )
    run = load(REGISTRY, overrides).registry.train.run
    said: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return said


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    quiet = parser.parse_args().json
    os.environ.update(ALLOCATOR)  # of both sides' ranks
    console = Console(quiet=quiet)
    rows = {}
    console.rule("recd train, as registry.yaml says")
    rows["recd train"] = by_registry(quiet)
    console.rule("the same job in plain TorchRec, by hand")
    rows["plain TorchRec, by hand"] = by_hand(quiet)
    console.rule("recd train with RecD: clustered by session, deduplicated")
    rows["recd train with RecD"] = by_registry(quiet, RECD)
    if quiet:
        print(json.dumps(rows))
        return
    settings = load(REGISTRY).registry.train
    table = Table(
        title=f"{settings.steps} steps of {settings.batch_size} on each of {settings.ranks} ranks",
        caption="sent: MB through all-to-alls, a rank and step; MiB: peak memory of a rank",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for column in ("samples/s", "sent", "MiB", "loss", "test NE", "AUC"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in ("plain TorchRec, by hand", "recd train", "recd train with RecD"):
        said = rows[name]
        table.add_row(
            name,
            f"{said['samples_per_second']:,.0f}",
            f"{sum(said['cost']['traffic']['all_to_all'].values()) / 1e6:.2f}",
            f"{said['peak_memory_mib']:,.0f}",
            f"{said['train']['loss']:.4f}",
            f"{said['test']['ne']:.4f}",
            f"{said['test']['auc']:.4f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
