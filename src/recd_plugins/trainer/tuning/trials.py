"""Runs trial steps in fresh processes, and finds the largest batch that fits a memory budget."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recd_plugins.launch.launcher import Failure, launch
from recd_plugins.launch.rank_server import RankServer
from recd_plugins.storage.temporary_folder import temporary_folder
from recd_plugins.trainer.tuning.learning import Learning
from recd_plugins.trainer.tuning.trial_rank import OUT_OF_MEMORY, WARM_UP

__all__ = ["Search", "Trial", "TrialFailed", "largest_batch", "run_learning", "run_trial"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Some steps with a batch size per rank."""

    batch_size: int
    fits: bool
    memory_mib: float | None = None
    """The memory of the rank that needed most; None if it ran out of memory."""
    samples_per_second: float | None = None
    """The rate of all ranks; None if a rank ran out of memory."""
    ids_per_sample: float | None = None
    """The ids of a sample in the batch that had most of them, without deduplicated ones; None if a
    rank ran out of memory."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The trials of a search, in order."""

    trials: Sequence[Trial]
    exhausted: bool
    """Whether the largest possible batch fits."""

    @property
    def best(self) -> Trial | None:
        """The trial with the largest batch that fits; None if not even one sample does."""
        fitting = [trial for trial in self.trials if trial.fits]
        return max(fitting, key=lambda trial: trial.batch_size, default=None)


class TrialFailed(Exception):
    """A trial failed, but not because memory did not suffice."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


def largest_batch(
    attempt: Callable[[int], Trial], *, start: int, limit: int, precision: float
) -> Search:
    """Double from `start` until a batch does not fit (or halve until one does), then bisect.

    The largest batch that fits is found to within `precision`, a share of it, provided that a
    smaller batch never needs more memory. `limit` is the largest possible batch.
    """
    trials: list[Trial] = []
    fits, fails = 0, limit + 1

    def tried(size: int) -> None:
        nonlocal fits, fails
        trials.append(attempt(size))
        if trials[-1].fits:
            fits = size
        else:
            fails = size

    size = min(start, limit)
    while fits < limit and fails > limit:
        tried(size)
        size = min(2 * size, limit)
    while not fits and fails > 1:
        tried(fails // 2)
    while fits and fails <= limit and fails - fits > max(1, precision * fits):
        tried((fits + fails) // 2)
    return Search(trials=trials, exhausted=fits == limit)


def run_trial(
    registry: Path,
    overrides: Sequence[str],
    *,
    batch_size: int,
    budget_mib: float,
    steps: int,
    ranks: int,
    threads: int,
    server: RankServer | None,
) -> Trial:
    """Train `steps` steps on fresh ranks; `TrialFailed` if they fail, but not for lack of
    memory."""
    found = _run(
        registry, overrides, batch_size, ranks, threads, server, steps=steps, budget=budget_mib
    )
    if found is None:
        return Trial(batch_size=batch_size, fits=False)
    return Trial(
        batch_size=batch_size,
        fits=found["memory_mib"] <= budget_mib,
        memory_mib=found["memory_mib"],
        samples_per_second=found["samples_per_second"],
        ids_per_sample=found["ids_per_sample"],
    )


def run_learning(
    registry: Path,
    overrides: Sequence[str],
    *,
    batch_size: int,
    budget_mib: float,
    samples: int,
    until: float | None,
    window: int,
    ranks: int,
    threads: int,
    server: RankServer | None,
) -> Learning | None:
    """Train `samples` samples on fresh ranks, or until the loss of `window` of them is low enough.

    None if memory does not suffice; `TrialFailed` as in `run_trial`.
    """
    at_once = batch_size * ranks
    found = _run(
        registry,
        overrides,
        batch_size,
        ranks,
        threads,
        server,
        steps=max(1, samples // at_once - WARM_UP),
        budget=budget_mib,
        window=max(1, window // at_once),
        **({} if until is None else {"until": until}),
    )
    if found is None:
        return None
    return Learning(
        batch_size=batch_size,
        samples_per_step=at_once,
        memory_mib=found["memory_mib"],
        seconds=found["seconds"],
        losses=found["losses"],
        warm_up=WARM_UP,
    )


def _run(
    registry: Path,
    overrides: Sequence[str],
    batch_size: int,
    ranks: int,
    threads: int,
    server: RankServer | None,
    **options: float,
) -> dict[str, Any] | None:
    """The result of a trial; None if it ran out of memory."""
    with temporary_folder("recd-trial-") as folder:
        changes = [*overrides, f"train.batch_size={batch_size}", f"train.ranks={ranks}"]
        command = [
            "recd_plugins.trainer.tuning.trial_rank",
            "--registry",
            str(registry),
            "--into",
            str(folder),
        ]
        command += [f"--{name}={value}" for name, value in options.items()]
        failure = launch(
            [*command, *changes],
            ranks,
            threads=threads,
            quiet=True,
            stopping="stopping",
            trial=True,
            server=server,
        )
        if any(folder.glob(f"{OUT_OF_MEMORY}*")) or (failure and _killed_by_memory(failure)):
            return None
        if failure is not None:
            raise TrialFailed(failure)
        found: dict[str, Any] = json.loads((folder / "trial.json").read_text())
        return found


def _killed_by_memory(failure: Failure) -> bool:
    """Whether the kernel killed the rank for its memory, or C++ was refused memory."""
    if failure.code == -signal.SIGABRT:
        return "bad_alloc" in failure.output
    return failure.code == -signal.SIGKILL
