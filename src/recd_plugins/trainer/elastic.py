"""Jobs that torchrun restarts, after a rank or a node was lost or one more came: the ranks that
there are then go on from the run's latest checkpoint by themselves.

A run keeps which processes of torchrun started its ranks. A job of which one is at work still is
the same job, restarted; any other begins anew, unless `--resume` is given.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from recd_plugins.planning.planner_bases import agreed
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.trainer.checkpoints.checkpoint import read_job
from recd_plugins.trainer.checkpoints.other_ranks import OtherRanks, for_ranks

__all__ = ["Launchers", "samples_of_step", "taken_over"]

ELASTIC = "TORCHELASTIC_RUN_ID"
"""A variable that torchrun sets for its ranks, and others do not."""


@dataclass(frozen=True, kw_only=True)
class Launchers:
    """The processes of torchrun that started the ranks of a job; none without torchrun."""

    names: tuple[str, ...]

    @classmethod
    def found(cls) -> Launchers:
        """Those of this job; every rank must call it."""
        every = [""] * dist.get_world_size()
        dist.all_gather_object(every, _parent() if ELASTIC in os.environ else "")
        return cls(names=tuple(sorted({name for name in every if name})))

    def restarted(self, run: Path) -> bool:
        """Whether this job has trained in the folder before, and left a checkpoint there; every
        rank must call it."""
        return agreed(lambda: not set(self.names).isdisjoint(_kept(run)) and _has_checkpoint(run))

    def keep(self, run: Path) -> None:
        """Note in the run's folder that this job trains there."""
        if self.names:
            _file(run).write_text(json.dumps(self.names) + "\n")


def taken_over(checkpoint: Path, settings: TrainSettings) -> OtherRanks | None:
    """What the checkpoint is for the ranks of a restarted job; None where they are as many as its
    own, and have as many samples."""
    saved = read_job(checkpoint)
    world_size = dist.get_world_size()
    size_before = saved["registry"].get("train", {}).get("batch_size", TrainSettings().batch_size)
    size = settings.batch_size
    samples = samples_of_step(checkpoint)
    if settings.elastic == "step" and samples % world_size == 0:
        size = samples // world_size
    if (world_size, size) == (saved["world_size"], size_before):
        return None
    return for_ranks(checkpoint, world_size, size)


def samples_of_step(checkpoint: Path) -> int:
    """The samples of all ranks in a step of the job that a checkpoint is of, as it was begun."""
    saved = read_job(checkpoint)
    size: int = saved["registry"].get("train", {}).get("batch_size", TrainSettings().batch_size)
    samples: int = saved.get("samples_of_step", saved["world_size"] * size)
    return samples


def _parent() -> str:
    """The process that started this one, by a name that no other has or will have."""
    pid = os.getppid()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return f"{socket.gethostname()}/{pid}"
    began = stat.rpartition(")")[2].split()[19]
    return f"{socket.gethostname()}/{pid}/{began}"


def _file(run: Path) -> Path:
    return run / "launchers.json"


def _kept(run: Path) -> set[str]:
    try:
        names = json.loads(_file(run).read_text())
    except (OSError, ValueError):
        return set()
    return {str(name) for name in names} if isinstance(names, list) else set()


def _has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("step-????????"))
