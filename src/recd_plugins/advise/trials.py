"""Trains the best few of the weighed registries in turns on this machine: forecast beside fact."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recd_plugins.advise.goal import AdviceGoal
from recd_plugins.advise.outlook import Outlook, Outlooks
from recd_plugins.advise.turns import trained_in_turns
from recd_plugins.advise.walk import Walk
from recd_plugins.config.yaml_text import to_yaml
from recd_plugins.errors import CapabilityError, so_many
from recd_plugins.launch.launcher import Failure
from recd_plugins.launch.machine_cores import machine_cores
from recd_plugins.launch.rank_server import RankServer
from recd_plugins.registry import Registry
from recd_plugins.registry.capability import resolve_device
from recd_plugins.storage.temporary_folder import temporary_folder

__all__ = ["TriedRegistry", "candidates", "check_ranks_here", "try_registries", "winner"]


RANKS_A_CORE = 8
"""The most ranks that may share a core. With more, a trial would measure how they wait, if the
machine has memory for them at all."""
ALIKE = 0.02
"""Two timed steps count as equally fast if they differ by at most this share."""
MOST_ROUNDS = 0.75
"""The share of rounds in which a step must be the faster one, or it may be by chance."""


@dataclass(frozen=True, kw_only=True)
class TriedRegistry:
    """A registry that was trained for some steps."""

    additions: tuple[str, ...]
    outlook: Outlook
    rounds: Sequence[float]
    """The milliseconds of a step in each round, on the slowest rank."""

    @property
    def ms(self) -> float:
        return statistics.median(self.rounds)

    def beats(self, other: TriedRegistry) -> bool:
        """Whether it is faster by more than `ALIKE`, in the median of the rounds, in each of which
        both had a turn; and in most of them, unless it has fewer additions."""
        ratios = [mine / its for mine, its in zip(self.rounds, other.rounds, strict=True)]
        if (1 + ALIKE) * statistics.median(ratios) >= 1:
            return False
        simpler = len(self.additions) < len(other.additions)
        return simpler or sum(ratio < 1 for ratio in ratios) >= MOST_ROUNDS * len(ratios)

    def summary(self) -> dict[str, Any]:
        return {
            "additions": list(self.additions),
            "forecast_ms": self.outlook.ms,
            "ms": self.ms,
            "rounds": list(self.rounds),
        }


def candidates(walk: Walk, goal: AdviceGoal, most: int) -> dict[tuple[str, ...], Outlook]:
    """The baseline, if memory has room for it, what is advised, and the next best within the
    budget; `most` besides the baseline. Among those with the same plan, the one with the fewest
    additions is taken."""
    base: dict[tuple[str, ...], Outlook] = {} if walk.base.lacks else {(): walk.base}
    found = {**base, walk.kept: walk.best}
    others = [
        (names, outlook) for names, outlook in walk.met.items() if goal.fits(outlook, walk.base)
    ]
    for names, outlook in sorted(others, key=lambda one: (goal.score(one[1]), len(one[0]))):
        if len(found) - len(base) >= most:
            break
        if all(_plan(outlook) != _plan(other) for other in found.values()):
            found[names] = outlook
    return found


def _plan(outlook: Outlook) -> tuple[Any, ...]:
    """The part of an outlook that differs if plans differ."""
    return (outlook.ms, outlook.memory, outlook.groups, outlook.hot)


def try_registries(
    sides: Mapping[tuple[str, ...], Outlook],
    outlooks: Outlooks,
    *,
    rounds: int,
    steps: int,
    server: RankServer | None = None,
) -> list[TriedRegistry]:
    """Train all sides on fresh ranks, each for some steps in its turn, with reading."""
    registries = [outlooks.registry(outlook.values) for outlook in sides.values()]
    found = _run(registries, rounds, steps, server)
    return [
        TriedRegistry(additions=names, outlook=outlook, rounds=[1e3 * one for one in found[index]])
        for index, (names, outlook) in enumerate(sides.items())
    ]


def check_ranks_here(ranks: int, registry: Registry) -> None:
    """`CapabilityError` if this machine cannot train so many ranks of the registry at a time."""
    here, planned = resolve_device(registry.train.device), registry.topology.device
    if planned not in (None, here):
        raise CapabilityError(
            f"--try: the topology has {planned} devices, but this job would train on {here}. "
            f"Advise without --try, or for the devices that are here: `topology.device={here}`."
        )
    cores = machine_cores()
    if ranks > RANKS_A_CORE * cores:
        raise CapabilityError(
            f"--try: {so_many(ranks, 'rank')} would train at once on this machine, which has "
            f"{so_many(cores, 'core')}. Advise without --try, or for at most "
            f"{so_many(RANKS_A_CORE * cores, 'rank')} (`--ranks`)."
        )


def winner(
    every: Sequence[TriedRegistry], goal: AdviceGoal, advised: tuple[str, ...]
) -> TriedRegistry:
    """The fastest of those that beat what was advised, or what was advised if none does. If the
    goal is memory, the baseline alone may beat it."""
    mine = next(one for one in every if one.additions == advised)
    rivals = [one for one in every if goal.objective != "memory" or not one.additions]
    return min((one for one in rivals if one.beats(mine)), key=lambda one: one.ms, default=mine)


def _run(
    registries: Sequence[Registry], rounds: int, steps: int, server: RankServer | None
) -> list[list[float]]:
    """The seconds of a step of each side, in each round."""
    with temporary_folder("recd-advise-") as folder:
        sides: list[tuple[Path, Sequence[str]]] = []
        for index, registry in enumerate(registries):
            file = folder / f"{index}.yaml"
            file.write_text(to_yaml(registry.source.values), encoding="utf-8")
            sides.append((file, ()))
        found = trained_in_turns(sides, rounds=rounds, steps=steps, server=server)
    if isinstance(found, Failure):
        print(found.output, file=sys.stderr)
        raise CapabilityError(
            f"--try: rank {found.rank} of the trial ended with {found.code}; its output is above. "
            "Advise without --try, or on a machine that can train it."
        )
    return found
