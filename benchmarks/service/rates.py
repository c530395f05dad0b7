"""Rows a second, the trainer's processor time and bytes on the wire, beside the local reader's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.harness import Figure, alternate, spread
from benchmarks.service.registries import KINDS, LOCAL, service, stack_of
from recd_dsi.service.reader import end_workers
from recd_plugins.data.batch import Batch
from recd_plugins.data.wired_batch import batch_to_record

__all__ = ["one_worker", "second_job", "wire"]

ROWS_TARGETS = {"IKJT": 0.85, "KJT": 0.6}
ONE = {**LOCAL, "use": "service", "workers": 1, "when_none_answers": "fail"}


def one_worker(folder: Path, rounds: int, *, samples: int, batch_size: int) -> list[Figure]:
    """Each round is an epoch of its own, so no batch comes from a cache."""
    figures = []
    for kind, target in ROWS_TARGETS.items():
        sizes = {"samples": samples, "batch_size": batch_size}
        local = stack_of(folder, kind, LOCAL, **sizes).loader(0, 1)
        ours = service(stack_of(folder, kind, ONE, **sizes))
        measured = alternate({"local": _epoch(local), "service": _epoch(ours)}, rounds)
        end_workers()
        pairs = list(zip(measured["local"], measured["service"], strict=True))
        shares = [theirs.wall / one.wall for theirs, one in pairs]
        cpu = [one.cpu / theirs.cpu for theirs, one in pairs]
        rows = {
            name: statistics.median(r.result / r.wall for r in measured[name]) for name in measured
        }
        figures += [
            Figure(
                name=f"one worker, {kind} batches: rows/s of the local reader's",
                value=statistics.median(shares),
                unit="of 1",
                baseline=1.0,
                target=target,
                spread=spread(shares),
                note=f"{rows['service']:,.0f} and {rows['local']:,.0f} rows/s, over loopback",
            ),
            Figure(
                name=f"{kind} batches: processor time of the trainer, of the local reader's",
                value=statistics.median(cpu),
                unit="of 1",
                baseline=1.0,
                target=0.25,
                at_most=True,
                spread=spread(cpu),
                note="the whole process of the rank, over all of its threads",
            ),
        ]
    return figures


def second_job(folder: Path, rounds: int, *, samples: int, batch_size: int) -> Figure:
    """Two loaders of one job take the same epochs, one after the other."""
    reader = {**ONE, "buffer_mib": 2048}
    stacks = [
        stack_of(folder, "IKJT", reader, samples=samples, batch_size=batch_size) for _ in range(2)
    ]
    first, second = map(service, stacks)
    speedups = []
    for number in range(rounds + 1):
        measured = _in_turn(_epoch(first), _epoch(second))
        if number:
            speedups.append(measured)
    end_workers()
    return Figure(
        name="a second job from the worker's cache: rows/s of the first's",
        value=statistics.median(speedups),
        unit="x",
        baseline=1.0,
        target=5,
        spread=spread(speedups),
        note="one worker, IKJT batches in its memory",
    )


def wire(folder: Path, *, samples: int, batch_size: int) -> Figure:
    """An epoch's record batches, as they travel."""
    sizes, factors = {}, []
    for kind in KINDS:
        loader = stack_of(folder, kind, LOCAL, samples=samples, batch_size=batch_size).loader(0, 1)
        sizes[kind] = 0
        for batch in loader:
            sizes[kind] += batch_to_record(batch).get_total_buffer_size()
            if kind == "IKJT":
                factors.append(batch.dedup.dedupe_factor())
    factor = statistics.mean(factors)
    return Figure(
        name="KJT batches over the wire, bytes of IKJT batches'",
        value=sizes["KJT"] / sizes["IKJT"],
        unit="x",
        baseline=1.0,
        target=0.9 * factor,
        note=f"{sizes['KJT'] / 1e6:,.1f} and {sizes['IKJT'] / 1e6:,.1f} MB an epoch; DedupeFactor "
        f"{factor:.2f} of the sequences; dense columns, labels and item ids are in both",
    )


def _epoch(loader: Iterable[Batch]) -> Callable[[], int]:
    return lambda: sum(len(batch) for batch in loader)


def _in_turn(first: Callable[[], int], second: Callable[[], int]) -> float:
    """How often the second is as fast; they must take as many rows."""
    began = time.perf_counter()
    rows = first()
    between = time.perf_counter()
    if second() != rows:
        raise AssertionError("two jobs over one epoch took different rows")
    return (between - began) / (time.perf_counter() - between)
