"""Whole jobs: is the machine fit, do checkpoints go both ways, where does a step's time go."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.parts import Part, Setting
from benchmarks.gpu.paths import TrainedPath
from benchmarks.harness import Figure
from recd_plugins.stack import load

__all__ = ["JOBS"]

ROOT = Path(__file__).parents[2]
TRACES = Path("runs/gpu")
STREAMS = (
    "tests/tiers/test_side_stream.py",
    "tests/host/test_capability.py",
    "tests/models/test_whole_rows.py",
)
FIRST, LAST = 4, 8
"""Steps of a run before its checkpoint, and in all."""


def _doctor(setting: Setting) -> Iterator[Figure]:
    ranks = min(2, torch.cuda.device_count()) if setting.on_cuda else 2
    command = [sys.executable, "-m", "recd_plugins", "doctor", "--json", "--ranks", str(ranks)]
    run = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=setting.seconds
    )
    for name, found in json.loads(run.stdout).items():
        yield Figure(
            name=f"doctor: {name}",
            value=float(found["ok"]),
            unit="",
            target=1,
            note=found["said"][:200],
        )


def _streams(setting: Setting) -> Iterator[Figure]:
    """The tests that are skipped where there is no GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *STREAMS]
    run = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=setting.seconds
    )
    yield Figure(
        name="side stream, capabilities and whole rows: tests",
        value=float(run.returncode == 0),
        unit="",
        target=1,
        note=(run.stdout.strip().splitlines() or [""])[-1],
    )


def _checkpoints(setting: Setting) -> Iterator[Figure]:
    """A run that is resumed on the other kind of device ends as one that stays ends."""
    here, there = setting.device, "cpu"
    with tempfile.TemporaryDirectory(prefix="recd-gpu-") as folder:
        straight = _losses(setting, folder, "straight", [(there, LAST)])
        ways = [((here, FIRST), (there, LAST)), ((there, FIRST), (here, LAST))]
        for (before, first), (after, last) in ways if here != there else ways[:1]:
            name = f"{before}-{after}"
            losses = _losses(setting, folder, name, [(before, first), (after, last)])
            yield Figure(
                name=f"a checkpoint of {before}, resumed on {after}: losses",
                value=max(abs(one - other) for one, other in zip(losses, straight, strict=True)),
                unit="off",
                target=1e-4,
                at_most=True,
                note=f"{FIRST} steps before and {LAST - FIRST} after, held to {LAST} on the CPU; "
                "the metrics keep five digits",
            )


def _losses(setting: Setting, folder: str, name: str, pieces: list[tuple[str, int]]) -> list[float]:
    run = Path(folder) / name
    for number, (device, steps) in enumerate(pieces):
        values = TrainedPath(ranks=1).registry(device, folder)
        values["train"] |= {"run": str(run), "steps": steps, "log_every": 1, "ranks": 1}
        own = Setting(device=device, quick=setting.quick, seconds=setting.seconds)
        own.on_ranks(_job, values, resume=number > 0)
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


def _job(device: torch.device, values: dict[str, Any], *, resume: bool = False) -> dict[str, Any]:
    from recd_plugins.trainer.run import train

    return train(load(values), device, resume=resume)


def _breakdown(setting: Setting) -> Iterator[Figure]:
    """A step's parts, of the demo's model on unique samples; its trace stays in runs/gpu."""
    with tempfile.TemporaryDirectory(prefix="recd-gpu-") as folder:
        values = TrainedPath(slots={"dedup": {"use": "exact", "groups": [["history"]]}}).registry(
            setting.device, folder
        )
        steps = 12 if setting.quick else 40
        values["train"] |= {
            "run": str(TRACES),
            "ranks": 1,
            "steps": steps,
            "log_every": 4,
            "profile_steps": 3 if setting.quick else 10,
        }
        summary = setting.on_ranks(_job, values)[0]
    for part, milliseconds in summary["parts_ms"].items():
        yield Figure(name=f"breakdown: {part}", value=milliseconds, unit="ms")


JOBS = (
    Part(name="doctor", about="versions, build, devices, collectives", run=_doctor, timed=False),
    Part(
        name="streams",
        about="the tests that are skipped without a GPU",
        run=_streams,
        needs_cuda="there are no streams",
        timed=False,
    ),
    Part(
        name="checkpoints",
        about="saved here and resumed on the CPU; and back",
        run=_checkpoints,
        timed=False,
    ),
    Part(name="breakdown", about="the parts of a step, and a trace of it", run=_breakdown),
)
