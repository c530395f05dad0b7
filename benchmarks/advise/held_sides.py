"""What runs on a rank of the search: sides that are assembled once, and stay for later turns."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch

from benchmarks.peak_memory import peak_memory
from benchmarks.recd_train.memory import give_back
from recd_plugins.advise.rank_in_turns import TrialSide, seconds_in_turns, trial_side
from recd_plugins.errors import RecdError
from recd_plugins.planning.remembered import remembering
from recd_plugins.stack import load

__all__ = ["assemble_sides", "drop_sides", "time_sides"]

CPU = torch.device("cpu")

_sides: dict[str, TrialSide] = {}
"""The sides of this rank, by name."""


def assemble_sides(registries: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Assemble and warm sides, whose tables are written; of those that cannot be, why. All ranks
    meet the same errors, for they plan together."""
    _remember()
    refused = {}
    for name, values in registries.items():
        try:
            _sides[name] = trial_side(load(values), CPU)
        except RecdError as error:
            refused[name] = str(error)
    return refused


@cache
def _remember() -> ExitStack:
    """From now on planners find what tables that are alike have in common once."""
    stack = ExitStack()
    stack.enter_context(remembering())
    return stack


def time_sides(names: Sequence[str], rounds: int, steps: int) -> list[list[float]]:
    """Seconds of a step of each, in each round."""
    return seconds_in_turns([_sides[name] for name in names], CPU, rounds, steps)


def drop_sides(names: Sequence[str]) -> float:
    """Give up their tables; the rank's peak of memory, in GB."""
    for name in names:
        _sides.pop(name, None)
    gc.collect()  # a pipeline and its modules hold each other
    give_back()
    return peak_memory() / 1e9
