"""Trains registries in turns on fresh ranks: for `recd advise --try`, and for the demand of a
trainer, which is how fast its ranks take batches that are in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from recd_plugins.errors import CapabilityError
from recd_plugins.launch.launcher import Failure, launch
from recd_plugins.launch.rank_server import RankServer
from recd_plugins.storage.temporary_folder import temporary_folder

__all__ = ["step_seconds", "trained_in_turns"]

RANK = "recd_plugins.advise.rank_in_turns"
"""The program of a rank."""


def step_seconds(
    registry: Path, sides: Sequence[Sequence[str]], *, rounds: int, steps: int, held: int
) -> list[list[float]]:
    """The seconds of a step of each side in each round, on the slowest rank. Each rank trains over
    and over on the `held` batches that it has in memory.

    A side is the registry with overrides. All sides train in turns, on the same fresh ranks.
    """
    each = [(registry, side) for side in sides]
    found = trained_in_turns(each, rounds=rounds, steps=steps, held=held)
    if isinstance(found, Failure):
        raise CapabilityError(
            f"the trainer's demand: {found}\nMeasure where `recd train` trains this registry."
        )
    return found


def trained_in_turns(
    sides: Sequence[tuple[Path, Sequence[str]]],
    *,
    rounds: int,
    steps: int,
    held: int = 0,
    server: RankServer | None = None,
) -> list[list[float]] | Failure:
    """The seconds of a step of each registry with overrides, in each round, on the ranks of the
    first one, or the failure of a rank. Reading is included, unless `held` batches are read
    before."""
    from recd_plugins.registry import Registry

    settings = Registry.load(*sides[0]).train
    with temporary_folder("recd-turns-") as folder:
        into = folder / "found.json"
        numbers = [f"--rounds={rounds}", f"--steps={steps}", f"--held={held}", f"--into={into}"]
        failure = launch(
            [RANK, *numbers, json.dumps([(str(file), [*side]) for file, side in sides])],
            settings.ranks,
            threads=settings.threads_of_each(settings.ranks),
            quiet=True,
            stopping="stopping",
            trial=True,
            server=server,
        )
        if failure is not None:
            return failure
        found: list[list[float]] = json.loads(into.read_text(encoding="utf-8"))
        return found
