"""Everything that a GPU can show, in ten minutes on one: parity of each path, steps, kernels.

    python -m benchmarks.gpu [--part NAME...] [--device cpu] [--quick] [--json] [--list]

Each part runs in processes of its own that end at its deadline, so that one that fails costs its
rows alone. The table goes to a dated file of `benchmarks/results`, with the machine and the
device; `python -m benchmarks --draw` puts it into RESULTS.md. On the CPU, where the program is
tried, nothing is kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
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
    figures: list[Figure] = []
    for number, part in enumerate(parts, 1):
        began = time.monotonic()
        setting = Setting(device=device, quick=options.quick, seconds=part.seconds)
        figures += ran(part, setting)
        seconds = time.monotonic() - began
        print(
            f"{number} of {len(parts)}: {part.name}, {seconds:.0f} s", file=sys.stderr, flush=True
        )
    report = Report(figures=figures, settings={"device": _named(device)})
    conditions = conditions_of(report, load=load, settings={"quick": options.quick})
    if options.json:
        print_json("gpu", conditions, figures)
        return figures
    print_table("gpu", conditions, figures)
    if device == "cuda":
        print(f"kept as {keep('gpu', conditions, shown(figures)).name}")
    return figures


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
