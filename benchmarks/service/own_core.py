"""One worker compared with the local reader, each with one core, because real workers run on other
machines and do not share the trainer's processors."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.harness import Figure, alternate, spread
from benchmarks.service.processes import begin_anew, cores, on_cores, worker_of
from benchmarks.service.rates import ONE, ROWS_TARGETS, WAYS, rows_of
from benchmarks.service.registries import KINDS, LOCAL, service, stack_of
from recd_dsi.service.process_fleets import end_workers
from recd_plugins.data.batch import Batch

__all__ = ["missing_cores", "own_core"]

WAY = "the wire"
"""How batches come from other machines."""


def missing_cores() -> str:
    """The reason why this cannot be measured here; empty if it can."""
    if len(cores()) > 1:
        return ""
    return "one worker on a core of its own: takes two cores, and a system that pins processes"


def own_core(folder: Path, rounds: int, *, samples: int, batch_size: int) -> Iterator[Figure]:
    """The local reader has the first core; then the worker has it, and its client the next."""
    first, second, *_ = cores()
    sizes = {"samples": samples, "batch_size": batch_size}
    for kind in KINDS:
        local = stack_of(folder, kind, LOCAL, **sizes).loader(0, 1)
        ours = service(stack_of(folder, kind, {**ONE, **WAYS[WAY]}, **sizes))
        worker, here = worker_of(ours), os.getpid()
        sides = {
            "local": partial(_epoch, local, {here: first}),
            "service": partial(_epoch, ours, {here: second, worker: first}),
        }
        of = f"one worker on a core of its own, {kind} batches"
        measured = alternate(sides, rounds, of=of, before=partial(begin_anew, ours))
        end_workers()
        pairs = zip(measured["local"], measured["service"], strict=True)
        speedups = [one.wall / mine.wall for one, mine in pairs]
        rows = {
            side: statistics.median(one.result / one.wall for one in measured[side])
            for side in sides
        }
        yield Figure(
            name=f"one worker on a core of its own, {kind} batches by {WAY}: rows/s, of the local "
            "reader's on one core",
            value=statistics.median(speedups),
            unit="of 1",
            baseline=1.0,
            target=ROWS_TARGETS[kind, WAY],
            spread=spread(speedups),
            note=f"{rows['service']:,.0f} and {rows['local']:,.0f} rows/s; the client has another "
            "core, as on a machine of its own",
        )


def _epoch(loader: Iterable[Batch], on: Mapping[int, int]) -> int:
    """The rows of an epoch, while these processes have the given cores."""
    with on_cores(on):
        return rows_of(loader)
