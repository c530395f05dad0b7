"""What recd_plugins is worth in trainers that others wrote: lines, parity, bytes, time.

    python -m benchmarks.trainers [--fetched FOLDER] [--quick] [--json] [--only NAME]

FOLDER, by default the current one, holds the programs in their original form, which are not kept
here:

    FOLDER/examples   `examples` of github.com/pytorch/torchrec
    FOLDER/dlrm       github.com/facebookresearch/dlrm

One comes with TorchRec itself. Two need faiss-cpu and pandas beside this project's packages. What
lacks its file or a package is named and left out. Each program runs three times under torchrun, on
two gloo ranks of one thread: as it is, with the lines that are added, and as it is from weights
that are off by one unit in the last place, which says what rounding does. Bytes are those that all
ranks hand to collectives in a step, all of an operand counted; the all-reduce of dense gradients is
left out. Plain is TorchRec's default plan.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.harness import NOT_MEASURED, Figure, Report, main
from benchmarks.trainers.foreign import TRAINERS, Trainer

RANKS = 2
SKIPPED = 4
"""Steps before those that count: a pipeline has begun the next ones by then."""
TIMES = 4.0
"""How many times what rounding does to plain TorchRec two runs may be apart, as in the tests."""
LIMIT = 600.0
"""Seconds that a program may take."""
TARGETS = {"golden_training": 1.9, "two_tower": 2.5, "bert4rec": 1.5}
"""How many times fewer bytes it should send; the others no more than plain and 1%."""


@dataclass(frozen=True)
class Side:
    """What a run of a program gave."""

    found: dict[str, Any]
    weights: dict[str, torch.Tensor]
    printed: str
    """What it printed on rank 0."""

    @property
    def bytes(self) -> float:
        """Bytes that all ranks hand over in a step, without the dense all-reduce."""
        sent = sum(
            size
            for rank in self.found["sent"]
            for phases in rank.values()
            for size in phases.values()
        )
        return float(sent - sum(self.found["dense"]))

    @property
    def all_to_all(self) -> float:
        return float(sum(sum(rank.get("all_to_all", {}).values()) for rank in self.found["sent"]))


def run(trainer: Trainer, fetched: Path, steps: int, *, edited: bool, off: bool = False) -> Side:
    """Run a program to so many steps, in a folder of its own; `off`: from weights that are off by
    one unit in the last place."""
    with tempfile.TemporaryDirectory(prefix="recd-trainers-") as name:
        folder = Path(name)
        program = folder / "program.py"
        program.write_text(trainer.text(fetched, edited=edited))
        for written, values in {"registry.yaml": trainer.registry, **trainer.files}.items():
            (folder / written).write_text(yaml.safe_dump(dict(values)))
        job = {
            "program": str(program),
            "beside": str((fetched / trainer.file).parent),
            "call": trainer.call,
            "arguments": trainer.arguments,
            "options": dict(trainer.options),
            "flags": trainer.flags,
            "off": off,
            "skipped": SKIPPED,
            "steps": steps,
            "found": str(folder / "found.json"),
            "weights": str(folder / "weights.pt"),
        }
        (folder / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(RANKS), "-m", "benchmarks.trainers.rank"]
        ended = subprocess.run(
            [*command, str(folder / "job.json")],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        if ended.returncode:
            printed = f"{ended.stdout[-2000:]}\n{ended.stderr[-6000:]}"
            raise SystemExit(f"{trainer.name} (edited: {edited}):\n{printed}")
        return Side(
            json.loads((folder / "found.json").read_text()),
            torch.load(folder / "weights.pt", weights_only=True),
            ended.stderr,
        )


def losses_apart(one: Side, other: Side) -> float:
    """The largest difference of any step's loss, as a share of it."""
    return max(
        float(abs(mine - theirs) / max(abs(mine), 1e-12))
        for pair in zip(one.found["losses"], other.found["losses"], strict=True)
        for mine, theirs in zip(*pair, strict=True)
    )


def weights_apart(one: Side, other: Side) -> float:
    """The largest difference of any weight."""
    assert one.weights.keys() == other.weights.keys(), "the two have other parameters"
    return max(float((one.weights[k] - other.weights[k]).abs().max()) for k in one.weights)


def figures(trainer: Trainer, fetched: Path, steps: int) -> Iterator[Figure]:
    name = trainer.name
    plain, ours = (run(trainer, fetched, steps, edited=edited) for edited in (False, True))
    lines = trainer.lines(fetched)
    yield Figure(name=f"{name}: lines", value=lines, unit="", target=8, at_most=True)
    rounded = run(trainer, fetched, steps, edited=False, off=True)
    for what, of in (("losses", losses_apart), ("weights", weights_apart)):
        apart, noise = of(plain, ours), of(plain, rounded)
        yield Figure(
            name=f"{name}: {what} apart",
            value=apart / noise if noise else apart,
            unit="of what an ulp does",
            target=TIMES,
            at_most=True,
            note=f"{apart:.2g}; plain against itself, from weights off by an ulp: {noise:.2g}",
        )
    least = TARGETS.get(name, 1 / 1.01)
    yield Figure(
        name=f"{name}: bytes",
        value=plain.bytes / ours.bytes,
        unit="x fewer",
        target=least,
        note=f"{plain.bytes / 1024:,.0f} and {ours.bytes / 1024:,.0f} KiB a step; all-to-all "
        f"{plain.all_to_all / 1024:,.0f} and {ours.all_to_all / 1024:,.0f}",
    )
    yield Figure(
        name=f"{name}: step",
        value=ours.found["ms"],
        unit="ms",
        baseline=plain.found["ms"],
        note="on one machine, where no network is relieved",
    )


def measure(quick: bool, fetched: Path, only: Sequence[str]) -> Report:
    steps = 20 if quick else 60
    chosen = [trainer for trainer in TRAINERS if not only or trainer.name in only]
    lacks = {trainer.name: list(trainer.lacks(fetched)) for trainer in chosen}
    here = [trainer for trainer in chosen if not lacks[trainer.name]]
    settings: dict[str, object] = {"ranks": RANKS, "steps": steps}
    settings["programs"] = [trainer.source for trainer in here]
    if left := {name: f"lacks {', '.join(what)}" for name, what in lacks.items() if what}:
        settings[NOT_MEASURED] = left
    return Report(
        figures=[one for trainer in here for one in figures(trainer, fetched, steps)],
        settings=settings,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--fetched", type=Path, default=Path())
    parser.add_argument("--only", nargs="*", default=(), choices=[one.name for one in TRAINERS])
    arguments, rest = parser.parse_known_args()
    fetched = arguments.fetched.resolve()
    main("trainers", partial(measure, fetched=fetched, only=arguments.only), rest)
