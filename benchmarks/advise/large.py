"""Advice on a model of a hundred large tables: seconds, processor time, and memory."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, Limit
from benchmarks.peak_memory import peak_memory

__all__ = ["large", "large_registry"]

SECONDS, GIB = 30.0, 4.0
BUDGET_GB = 1.0
BASELINE = "TorchRec's own best plan"
"""What `advise` calls its first part."""


def large_registry(folder: Path, tables: int, rows: int, samples: int) -> dict[str, Any]:
    """A fifth of the tables are of sequences, half of the features are the user's."""
    features = []
    for number in range(tables):
        one: dict[str, Any] = {"name": f"f{number}", "num_ids": rows, "skew": 1.0 + number / 200}
        one["kind"] = "user" if number % 2 else "item"
        if one["kind"] == "user":
            one["stay"] = 0.9
        if number % 5 == 1:
            one |= {"sequence": True, "length": 10.0, "kind": "user", "stay": 0.95}
        features.append(one)
    return {
        "plugins": ["recd_dlrm"],
        "folder": str(folder),
        "dataset": {
            "use": "sessions",
            "samples": samples,
            "samples_per_session": 8,
            "features": features,
        },
        "model": {"use": "sequence_dlrm", "embedding_dim": 64, "bottom": [64], "top": [64]},
        "topology": "a100_dgx",
        "train": {"device": "cpu", "ranks": 16, "batch_size": 512},
    }


def large(tables: int, rows: int, samples: int) -> Iterator[Figure]:
    """In a process of its own, whose tables are there already; all else is found anew."""
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.advise.large", folder]
        command += [str(tables), str(rows), str(samples)]
        subprocess.run([*command, "--prepare"], check=True, capture_output=True)
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    each = ", ".join(f"{what} {seconds:.1f}" for what, seconds in found["steps"].items())
    note = (
        f"{tables} tables of {rows:,} rows, {samples:,} samples, 16 ranks; advised: "
        f"{', '.join(found['advised']) or 'nothing'}; processor time of each: {each}"
    )
    yield Figure(
        name="advice, with what would change it",
        value=found["wall"],
        unit="s",
        target=SECONDS,
        at_most=True,
        note=note,
    )
    yield Figure(
        name="advice, with what would change it, processor time",
        value=sum(found["steps"].values()),
        unit="s",
        target=SECONDS,
        at_most=True,
        limit=Limit(
            value=found["steps"]["registry"] + found["steps"][BASELINE],
            of="loading the registry, and TorchRec's own best plan, by which all is weighed: no "
            "addition is",
        ),
        note="which other work on the machine changes little",
    )
    yield Figure(
        name="advice, peak memory", value=found["gib"], unit="GiB", target=GIB, at_most=True
    )


def _prepare(values: dict[str, Any]) -> None:
    """Make the tables that additions and what-ifs read: as they are and with half of their samples,
    in time and clustered; and have kernels compiled, as `make` has them."""
    from recd_plugins.data.compiled import compile_kernels
    from recd_plugins.stack import load

    compile_kernels()

    half = {"use": "downsample_samples", "keep": 0.5}
    cluster = {"use": "cluster_by_session"}
    for etl in ([], [cluster], [half], [half, cluster]):
        load({**values, "plugins": ["recd_dlrm", "recd_dedup"], "etl": etl}).prepare()


def _measured(values: dict[str, Any]) -> dict[str, Any]:
    from recd_plugins.advise.advice import advise
    from recd_plugins.advise.goal import AdviceGoal
    from recd_plugins.registry import Registry

    registry = Registry.load(values)
    began, last = time.perf_counter(), time.process_time()
    steps: dict[str, float] = {}
    now = "registry"

    def met(what: str) -> None:
        nonlocal now, last
        steps[now] = time.process_time() - last
        print(f"{now}: {steps[now]:.1f} s of processor time", file=sys.stderr, flush=True)
        now, last = what, time.process_time()

    advice = advise(registry, AdviceGoal(budget_gb=BUDGET_GB), met=met)
    met("")
    return {
        "wall": time.perf_counter() - began,
        "steps": steps,
        "gib": peak_memory() / 2**30,
        "advised": list(advice.walk.kept),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advise.large")
    parser.add_argument("folder", type=Path)
    for name in ("tables", "rows", "samples"):
        parser.add_argument(name, type=int)
    parser.add_argument("--prepare", action="store_true")
    arguments = vars(parser.parse_args())
    only_tables = arguments.pop("prepare")
    warnings.filterwarnings("ignore")
    registry = large_registry(**arguments)
    if only_tables:
        _prepare(registry)
    else:
        print(json.dumps(_measured(registry)))
