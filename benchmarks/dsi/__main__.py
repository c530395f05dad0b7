"""DSI's rows: transforms, how tables lie on disk, and some of their rows.

python -m benchmarks.dsi [--quick] [--json]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from benchmarks.dsi.layouts import flattening, reordering, striping
from benchmarks.dsi.over_s3 import over_s3
from benchmarks.dsi.selecting import selecting
from benchmarks.dsi.transforms import transforms
from benchmarks.harness import Report, main

BATCH_SIZE = 8192


def measure(quick: bool) -> Report:
    """torch runs on one thread, as it does in a reader's worker, for both sides."""
    torch.set_num_threads(1)
    rounds = 2 if quick else 5
    figures = transforms(BATCH_SIZE, rounds)
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder:
        figures += flattening(Path(folder) / "maps", rounds, rows=8_000 if quick else 40_000)
        figures += reordering(Path(folder) / "order")
        figures.append(striping(Path(folder) / "stripes", rounds))
        figures.append(selecting(Path(folder) / "rows", rows=500_000 if quick else 1_000_000))
        figures += over_s3(Path(folder) / "s3", rounds)
    settings = {"batch_size": BATCH_SIZE, "rounds": rounds, "torch_threads": 1}
    return Report(figures=figures, settings=settings)


if __name__ == "__main__":
    main("dsi", measure)
