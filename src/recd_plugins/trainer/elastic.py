"""Jobs that torchrun restarts after a rank or a node was lost or added: the ranks that are there by
then go on from the run's latest checkpoint by themselves.

The ranks of each attempt meet at a store of their own. torchrun (as of torch 2.13) gives all
attempts the same store, which still has the addresses of the ranks that are gone.

A run's folder records which processes of torchrun started its ranks. A job that one of these
processes started is the same job, restarted. Any other job begins anew, unless it is to resume.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from recd_plugins.errors import RecdError, listed, so_many
from recd_plugins.launch.environment import ELASTIC, launchers_store
from recd_plugins.launch.processes import stat_of
from recd_plugins.planning.together import agreed
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.storage.whole_file import write_whole
from recd_plugins.trainer.checkpoints.files import read_job
from recd_plugins.trainer.checkpoints.other_ranks import OtherRanks, batch_size_in, for_ranks
from recd_plugins.trainer.checkpoints.step_folders import checkpoints_in

__all__ = [
    "Launchers",
    "attempt_name",
    "attempt_store",
    "restarted_batch_size",
    "samples_of_step",
    "taken_over",
]

LOOK = 0.05
"""Seconds between two checks of which ranks are there."""
PATIENCE = 1_800.0
"""Seconds that ranks wait for each other: torch's own for gloo."""
SOONEST = 120.0
"""Seconds that they wait at least: each imports torch first."""
NAMED = 8
"""Ranks that a message names one by one."""


def attempt_store(patience: float) -> Store | None:
    """The store where only the ranks of this attempt meet; None where torch's own store is right,
    because the launcher has no store, or a new one for each attempt.

    They wait `patience` seconds for each other, or torch's own time if it is 0.
    """
    store = launchers_store(PATIENCE)
    if store is None:
        return None
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    name = attempt_name(store, rank, world_size, max(patience, SOONEST) if patience else PATIENCE)
    return PrefixStore(name, store)


def attempt_name(store: Store, rank: int, world_size: int, patience: float = PATIENCE) -> str:
    """A name on which the ranks that are alive now agree, and no earlier ones; every rank must call
    it.

    Each rank stores a new word under its number. Rank 0 proposes the words that it sees. Some may
    be of ranks that are gone; a rank agrees only if it finds its own word.
    """
    word = uuid4().hex
    store.set(f"here/{rank}", word)
    proposed: list[str] = []
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        if rank == 0:
            here = [_stored(store, f"here/{one}") for one in range(world_size)]
            if all(here) and here != proposed:
                proposed = here
                store.set("proposed", json.dumps(here))
        else:
            proposed = json.loads(_stored(store, "proposed") or "[]")
        if len(proposed) == world_size and proposed[rank] == word:
            name = sha256("".join(proposed).encode()).hexdigest()
            store.set(f"agreed/{name}/{rank}", "yes")
            if rank == 0 and store.check([f"agreed/{name}/{one}" for one in range(world_size)]):
                store.set("begins", name)
            if _stored(store, "begins") == name:
                return name
        time.sleep(LOOK)
    name = sha256("".join(proposed).encode()).hexdigest()
    came = [f"agreed/{name}/{one}" if proposed else f"here/{one}" for one in range(world_size)]
    missing = [one for one in range(world_size) if not store.check([came[one]])]
    raise RecdError(
        f"rank {rank} waited {patience:,.0f} s (train.hang_after) for the "
        f"{so_many(world_size, 'rank')} of its job to meet at {os.environ.get('MASTER_ADDR')}; "
        f"{listed(missing, NAMED, kind='rank')} did not come. Check whether they were started, and "
        "what keeps them: before this, a rank reads its programs, its registry and its plugins."
    )


def _stored(store: Store, key: str) -> str:
    """The value that a rank stored under a key; empty if none did."""
    return bytes(store.get(key)).decode() if store.check([key]) else ""


@dataclass(frozen=True, kw_only=True)
class Launchers:
    """The processes of torchrun that started the ranks of a job; none without torchrun."""

    names: tuple[str, ...]

    @classmethod
    def found(cls) -> Launchers:
        """The launchers of this job; every rank must call it."""
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
            write_whole(_file(run), json.dumps(self.names) + "\n")


def taken_over(checkpoint: Path, batch_size: int, streams: int | None) -> OtherRanks | None:
    """The checkpoint as the ranks of a restarted job see it, with `batch_size` samples each and the
    reader's `streams`, if these are fixed; None if it has as many ranks and samples."""
    saved = read_job(checkpoint)
    world_size = dist.get_world_size()
    if (world_size, batch_size) == (saved["world_size"], batch_size_in(saved["registry"])):
        return None
    return for_ranks(checkpoint, world_size, batch_size, streams)


def restarted_batch_size(checkpoint: Path, settings: TrainSettings) -> int:
    """The samples of each rank of a restarted job. The settings name those of the ranks that the
    job began with, whether there are as many now or not."""
    samples, world_size = samples_of_step(checkpoint), dist.get_world_size()
    if settings.elastic == "step" and samples % world_size == 0:
        return samples // world_size
    return settings.batch_size


def samples_of_step(checkpoint: Path) -> int:
    """The samples that all ranks took in a step when the checkpoint's job began."""
    saved = read_job(checkpoint)
    if "samples_of_step" in saved:
        return int(saved["samples_of_step"])
    return int(saved["world_size"]) * batch_size_in(saved["registry"])


def _parent() -> str:
    """A name of the process that started this one, which no other process has or will have."""
    pid = os.getppid()
    try:
        return f"{socket.gethostname()}/{pid}/{stat_of(pid).began}"
    except OSError:
        return f"{socket.gethostname()}/{pid}"


def _file(run: Path) -> Path:
    return run / "launchers.json"


def _kept(run: Path) -> set[str]:
    try:
        names = json.loads(_file(run).read_text())
    except (OSError, ValueError):
        return set()
    return {str(name) for name in names} if isinstance(names, list) else set()


def _has_checkpoint(run: Path) -> bool:
    return bool(checkpoints_in(run / "checkpoints"))
