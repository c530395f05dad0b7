"""`make demo`: `recd train` on registry.yaml, beside the same job in plain TorchRec by hand.

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
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import ALLOCATOR
from recd_plugins.stack import load
from recd_plugins.trainer.launch import launch

REGISTRY = "registry.yaml"


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


def by_registry(quiet: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "recd_plugins", "train", "--registry", REGISTRY]
    subprocess.run(
        [*command, "--json"] if quiet else command,
        check=True,
        stdout=subprocess.DEVNULL if quiet else None,
    )
    run = load(REGISTRY).registry.train.run
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
    if quiet:
        print(json.dumps(rows))
        return
    settings = load(REGISTRY).registry.train
    table = Table(
        title=f"{settings.steps} steps of {settings.batch_size} on each of {settings.ranks} ranks",
        caption="samples/s: median over the run; MiB: peak memory of rank 0",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for column in ("samples/s", "MiB", "train loss", "test NE", "AUC"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, said in reversed(rows.items()):
        table.add_row(
            name,
            f"{said['samples_per_second']:,.0f}",
            f"{said['peak_memory_mib']:,.0f}",
            f"{said['train']['loss']:.4f}",
            f"{said['test']['ne']:.4f}",
            f"{said['test']['auc']:.4f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
