"""Everything that a GPU can show, in ten minutes on one: parity of each path, steps, kernels.

    python -m benchmarks.gpu [--part NAME...] [--device cpu] [--quick] [--json] [--list]

Each part runs in processes of its own that end at its deadline, so that one that fails costs its
rows alone. Those that measure no time run beside each other first, where there are cores for it.
The rows go to a dated file of `benchmarks/results` as they come, with the machine and the device;
`python -m benchmarks --draw` puts them into RESULTS.md. On the CPU, where the program is tried,
nothing is kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

# Asking the driver how many devices there are must not bind this process to it: ranks are forked.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch

from benchmarks.gpu.jobs import JOBS
from benchmarks.gpu.kernels import KERNELS
from benchmarks.gpu.parts import Part, Setting, ran
from benchmarks.gpu.paths import PARITY
from benchmarks.gpu.steps import STEPS
from benchmarks.harness import Figure, Report, conditions_of, print_json, print_table, shown
from benchmarks.kept import keep

__all__ = ["PARTS", "main"]

ROOT = Path(__file__).parents[2]
CORES_OF_A_PART = 3
"""Of up to four ranks, and of who waits for them."""
DOCTOR, STREAMS, CHECKPOINTS, BREAKDOWN = JOBS
PARTS: tuple[Part, ...] = (DOCTOR, *PARITY, STREAMS, CHECKPOINTS, *STEPS, *KERNELS, BREAKDOWN)


def main(argv: Sequence[str] | None = None) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--part", nargs="+", metavar="NAME", help="these parts alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="by default cuda")
    parser.add_argument("--quick", action="store_true", help="less data and fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--list", action="store_true", help="which parts there are")
    options = parser.parse_args(argv)
    if options.list:
        for part in PARTS:
            print(f"{part.name:16} {part.about}")
        return []
    device = options.device or "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        parser.error(
            "torch sees no CUDA device here. `recd doctor` says why; --device cpu tries the "
            "program itself."
        )
    parts = _chosen(parser, options.part)
    load = os.getloadavg()[0]
    given = ["--device", device, *(["--quick"] if options.quick else [])]
    beside = _beside([part for part in parts if not part.timed], given)
    figures = [row for part in parts for row in beside.get(part.name, ())]
    report = Report(figures=figures, settings={"device": _named(device)})
    conditions = conditions_of(report, load=load, settings={"quick": options.quick})
    kept: Path | None = None
    for number, part in enumerate(parts, 1):
        if part.name not in beside:
            began = time.monotonic()
            setting = Setting(device=device, quick=options.quick, seconds=part.seconds)
            figures += ran(part, setting)
            _say(part, f"{number} of {len(parts)}, {time.monotonic() - began:.0f} s")
        if device == "cuda" and not options.json:  # so far: a run that is cut off has its rows
            kept = keep("gpu", conditions, shown(figures), over=kept)
    if options.json:
        print_json("gpu", conditions, figures)
        return figures
    print_table("gpu", conditions, figures)
    if kept is not None:
        print(f"kept as {kept.name}")
    return figures


def _beside(parts: Sequence[Part], given: Sequence[str]) -> dict[str, list[Figure]]:
    """The rows of each of these parts, which run side by side; nothing where there are no cores
    for that."""
    workers = min(len(parts), (os.cpu_count() or 1) // CORES_OF_A_PART)
    if workers < 2:
        return {}
    with ThreadPoolExecutor(workers) as pool:
        rows = pool.map(partial(_apart, given=given), parts)
        return {part.name: found for part, found in zip(parts, rows, strict=True)}


def _apart(part: Part, given: Sequence[str]) -> list[Figure]:
    """The rows of a part by a process of its own."""
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu", "--json", *given, "--part", part.name]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    _say(part, f"beside others, {time.monotonic() - began:.0f} s")
    if run.returncode:
        print(run.stderr, file=sys.stderr, flush=True)
        why = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1][:200]
        return [Figure(name=f"{part.name}: runs", value=0, unit="", target=1, note=why)]
    names = [one.name for one in dataclasses.fields(Figure) if one.name != "limit"]
    rows = json.loads(run.stdout)["figures"]
    return [Figure(**{name: row[name] for name in names}) for row in rows]


def _say(part: Part, what: str) -> None:
    print(f"{part.name}: {what}", file=sys.stderr, flush=True)


def _chosen(parser: argparse.ArgumentParser, names: list[str] | None) -> list[Part]:
    known = {part.name for part in PARTS}
    if unknown := sorted(set(names or ()) - known):
        parser.error(f"there is no part {', '.join(unknown)}: there are {', '.join(sorted(known))}")
    return [part for part in PARTS if names is None or part.name in names]


def _named(device: str) -> dict[str, Any]:
    """What was measured on."""
    if device == "cpu":
        return {"kind": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    return {
        "kind": "cuda",
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "count": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
    }


if __name__ == "__main__":
    main()
