"""The part of its steps for which a trainer waits, if workers are fast enough for it."""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Figure, alternate, spread
from benchmarks.service.rates import ONE, rows_of
from benchmarks.service.registries import LOCAL, service, stack_of
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.process_fleets import end_workers
from recd_plugins.api import Loader

__all__ = ["stalls"]

ENOUGH = 2
"""How many times as many batches the workers can make as the trainer takes."""


EPOCHS = 3
"""How many epochs are read to learn how fast the workers are: in the first ones they begin."""


class Waited(NamedTuple):
    """The seconds of an epoch in which the trainer waits."""

    first: float
    """The seconds for the first batch."""
    later: float
    """The seconds for all other batches."""
    steps: float


def stalls(folder: Path, rounds: int, *, samples: int, batch_size: int) -> Figure:
    """A step uses no processor, like a step on an accelerator."""
    sizes = {"samples": samples, "batch_size": batch_size}
    local = stack_of(folder, "IKJT", LOCAL, **sizes).loader(0, 1)
    ours = service(stack_of(folder, "IKJT", {**ONE, "workers": 2}, **sizes))
    step = ENOUGH * min(_seconds(ours) for _ in range(EPOCHS)) / len(ours)
    sides = {"local": partial(_trained, local, step), "service": partial(_trained, ours, step)}
    measured = alternate(sides, rounds, of="stalls of a trainer")
    end_workers()

    def shares(side: str) -> list[float]:
        return [one.result.later / one.result.steps for one in measured[side]]

    firsts = {
        side: 1e3 * statistics.median(one.result.first for one in measured[side])
        for side in measured
    }
    stalled = statistics.median(shares("service"))
    return Figure(
        name="trainer with enough workers: stalls, of step time",
        value=stalled,
        unit="of 1",
        baseline=statistics.median(shares("local")),
        target=0.01,
        at_most=True,
        spread=spread(shares("service")) if stalled else None,
        note=f"as the client counts it, behind an epoch's first batch; steps of {1e3 * step:.2f} "
        f"ms, which use no processor, {ENOUGH} times what 2 workers need; beside it the local "
        f"reader's in the same steps; for the first batch of an epoch {firsts['service']:.0f} ms, "
        f"the local reader {firsts['local']:.0f}",
    )


def _seconds(loader: Loader) -> float:
    """The time of an epoch by a trainer that only reads."""
    began = time.perf_counter()
    rows_of(loader)
    return time.perf_counter() - began


def _trained(loader: Loader, step: float) -> Waited:
    waits, steps, first = [], 0.0, 0.0
    asked = time.perf_counter()
    for _ in loader:
        taken = time.perf_counter()
        waits.append(taken - asked)
        if len(waits) == 1 and isinstance(loader, ServiceLoader):
            first = loader.stalled
        time.sleep(step)
        asked = time.perf_counter()
        steps += asked - taken
    later = loader.stalled - first if isinstance(loader, ServiceLoader) else sum(waits[1:])
    return Waited(waits[0], later, steps)
