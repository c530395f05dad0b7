"""Steps: the models of RecD's paper, by TorchRec's ways and ours; tables in host memory."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.parts import Part, Setting, reason
from benchmarks.harness import Figure, spread
from benchmarks.recd_train.measured import BASELINE, MeasuredTraining
from benchmarks.recd_train.ranks import TrainSteps, take_turns
from benchmarks.recd_train.workload import CLUSTERED, RECD, TrainSide, TrainWorkload
from recd_plugins.advise.rank_in_turns import in_turns
from recd_plugins.stack import load

__all__ = ["STEPS"]

ON_CUDA = {
    "TorchRec's index dedup": TrainSide(dedup=False, pool_unique=False, index_dedup=True),
    "TorchRec's VBE": TrainSide(pool_unique=False, route="vbe"),
}
"""Sides that have no kernels on the CPU."""
SCALE, QUICK_SCALE = 1 / 2, 1 / 24
MEMORY_OF_RM1 = 100
"""GiB of a device that holds RM1 at its full size twice over, and a step on plain KJTs."""
TABLES, ROWS, DIM, LOOKUPS = 8, 1_000_000, 64, 20
LOAD_FACTOR = 0.2
"""TorchRec's own, where nobody says one."""


def _model(setting: Setting, name: str, target: float) -> Iterator[Figure]:
    """A model's step, the baseline's in the same process."""
    with tempfile.TemporaryDirectory(prefix="recd-gpu-") as folder:
        workload = TrainWorkload(
            model=name,
            scale=QUICK_SCALE if setting.quick else SCALE,
            folder=Path(folder),
            samples=512 if setting.quick else 16_384,
            ranks=1,
        )
        found = workload.prepare()
        rounds, batches = (1, 1) if setting.quick else (12, 4)
        measure = partial(_steps, setting, workload, rounds=rounds, batches=batches)
        ours, theirs = {BASELINE: CLUSTERED, "RecD": RECD}, ON_CUDA if setting.on_cuda else {}
        against = f"{name}: step by {{}}, against plain KJTs"
        runs: dict[str, dict[str, TrainSteps]] = {}
        try:
            together = measure(ours | theirs)
            runs = dict.fromkeys(theirs, together)
        except Exception as error:  # TorchRec's failure is a row, and no reason to leave out ours
            if not theirs:
                raise
            print(f"{name}, all sides in turn: {reason(error)}", file=sys.stderr, flush=True)
            for other, side in theirs.items():
                try:
                    runs[other] = measure(ours | {other: side})
                except Exception as error:
                    yield Figure(
                        name=against.format(other), value=0, unit="x faster", note=reason(error)
                    )
            together = [*runs.values(), {}][0] or measure(ours)
        for other, steps in runs.items():
            measured = MeasuredTraining(sides=steps, samples_per_session=found)
            yield measured.faster(against.format(other), other)
        measured = MeasuredTraining(sides=together, samples_per_session=found)
        yield measured.faster(f"{name}: step, against plain KJTs", "RecD", target=target)


def _whole(setting: Setting) -> Iterator[Figure]:
    """RM1 as large as it is, where the device has room for both sides: by ours and by plain KJTs
    alone."""
    room = torch.cuda.get_device_properties(0).total_memory / 2**30
    scale = QUICK_SCALE if setting.quick else 1 if room >= MEMORY_OF_RM1 else 3 / 4
    with tempfile.TemporaryDirectory(prefix="recd-gpu-") as folder:
        workload = TrainWorkload(
            model="rm1", scale=scale, folder=Path(folder), samples=6144, ranks=1
        )
        found = workload.prepare()
        sides = _steps(setting, workload, {BASELINE: CLUSTERED, "RecD": RECD}, rounds=12, batches=2)
    measured = MeasuredTraining(sides=sides, samples_per_session=found)
    yield measured.faster(
        f"rm1 at {scale:.0%} of its size: step, against plain KJTs", "RecD", target=4
    )


def _steps(
    setting: Setting, workload: TrainWorkload, sides: dict[str, TrainSide], **options: Any
) -> dict[str, TrainSteps]:
    return setting.on_ranks(_turns, workload, sides, **options)[0]


def _turns(
    device: torch.device, workload: TrainWorkload, sides: dict[str, TrainSide], **options: Any
) -> dict[str, TrainSteps]:
    return take_turns(
        dataclasses.replace(workload, device=device.type), sides, device=device, **options
    )


def _uvm(setting: Setting) -> Iterator[Figure]:
    """Tables that the device has room for a fifth of: TorchRec's cache, and what SCARS chooses."""
    rows = 10_000 if setting.quick else ROWS
    table_gb = TABLES * rows * DIM * 4 / 1e9
    features = [
        {"name": f"f{i}", "num_ids": rows, "length": LOOKUPS, "skew": 1.05} for i in range(TABLES)
    ]
    cached = {"compute_kernels": ["fused_uvm_caching"], "load_factor": LOAD_FACTOR}
    sides: dict[str, dict[str, Any]] = {
        "all tables behind caches of 0.2": {
            "sharding": {
                "use": "torchrec",
                "constraints": {"*": {"sharding_types": ["row_wise"], **cached}},
            }
        },
        "SCARS": {
            "cache": {
                "use": "scars",
                "home": "host",
                "memory_gb": LOAD_FACTOR * table_gb * 1.25 + 1,
                "hot_batches": False,
            }
        },
    }
    with tempfile.TemporaryDirectory(prefix="recd-gpu-") as folder:
        base = {
            "plugins": ["recd_dlrm", "recd_scars"],
            "folder": folder,
            "dataset": {"use": "sessions", "samples": 65_536, "features": features},
            "model": {"use": "dlrm", "embedding_dim": DIM, "bottom": [64], "top": [64]},
            "train": {"device": setting.device, "ranks": 1, "batch_size": 4096},
        }
        load(base | {"train": {"device": "cpu"}}).prepare()
        seconds = setting.on_ranks(_side_by_side, [base | side for side in sides.values()])[0]
    theirs, ours = seconds
    gains = [before / after for before, after in zip(theirs, ours, strict=True)]
    yield Figure(
        name="tables of five times the device's room: a step by SCARS's kernels, against caches "
        "of 0.2",
        value=statistics.median(gains),
        unit="x faster",
        baseline=1.0,
        target=1.0,
        spread=spread(gains),
        note=", ".join(
            f"{name} {1e3 * statistics.median(times):.1f} ms"
            for name, times in zip(sides, seconds, strict=True)
        ),
    )


def _side_by_side(device: torch.device, registries: list[dict[str, Any]]) -> list[list[float]]:
    return in_turns([load(values) for values in registries], device, rounds=7, steps=10)


STEPS = (
    *(
        Part(
            name=name,
            about=f"the paper's {name.upper()}: a step on unique samples, on plain KJTs, and by "
            "TorchRec's VBE and index dedup",
            run=partial(_model, name=name, target=target),
            seconds=120,
        )
        for name, target in (("rm1", 4), ("rm2", 1.4), ("rm3", 1.5))
    ),
    Part(
        name="rm1-whole",
        about="the paper's RM1 at its full size, or three quarters of it on a device of less than "
        f"{MEMORY_OF_RM1} GiB",
        run=_whole,
        needs_cuda="a step takes minutes",
    ),
    Part(
        name="host-memory",
        about="SCARS's choice of UVM kernels, against fused_uvm_caching at 0.2 for all tables",
        run=_uvm,
        needs_cuda="fbgemm has no UVM",
    ),
)
