"""How many workers a trainer needs, by measuring what it takes and what one worker makes."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from recd_plugins.api import CapabilityError, RegistryError, so_many

if TYPE_CHECKING:
    from recd_plugins import Stack
    from recd_plugins.api.batch import Batch
    from recd_plugins.api.data import Progress

__all__ = ["Sizing", "Sizings", "Supply", "measured_sizings", "sizing_lines"]

WITH, WITHOUT = "with dedup", "without dedup"
SAME = ("shuffle", "window", "sessions", "tail", "streams")
"""The options of a reader that decide how much work a worker has for a batch."""
HELD = 8
"""The most batches that each rank holds while its demand is measured."""
LOOK = 4
"""The number of batches between two looks at what the worker has made."""
MOST_SIZES = 64
"""The most batches whose size is measured."""
DEADLINE = 60.0
"""Seconds within which the worker must report what it has made."""
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Supply:
    """The work that one worker did."""

    batches: int
    """The number of batches that it served."""
    seconds: float
    processor_seconds: float
    """The processor time for as many batches; it made more batches, ahead."""
    batch_bytes: int
    """The mean bytes of a batch on the wire."""

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """How many workers a trainer needs, by what it takes and what one worker makes."""

    ranks: int
    batch_size: int
    step_ms: tuple[float, ...]
    """In each round, the time of a step of the slowest rank, fed from memory."""
    supply: Supply
    margin: float

    @property
    def demand(self) -> float:
        """The batches per second that all ranks take together."""
        return self.ranks * 1e3 / median(self.step_ms)

    @property
    def workers(self) -> int:
        """margin * demand / supply, rounded up."""
        return max(1, math.ceil(self.margin * self.demand / self.supply.rate))

    @property
    def workers_of_a_rank(self) -> int:
        """The value for `reader.workers`: how many each rank starts."""
        return math.ceil(self.workers / self.ranks)

    @property
    def cores(self) -> float:
        """The number of cores that workers keep busy for this demand."""
        return self.demand * self.supply.processor_seconds / self.supply.batches

    @property
    def bytes_per_second(self) -> float:
        """The bytes per second from workers to ranks."""
        return self.demand * self.supply.batch_bytes

    def summary(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            **asdict(self),
            "samples_per_second": self.demand * self.batch_size,
            "samples_per_second_of_a_worker": self.supply.rate * self.batch_size,
            "workers": self.workers,
            "workers_of_a_rank": self.workers_of_a_rank,
            "cores": self.cores,
            "bytes_per_second": self.bytes_per_second,
        }


@dataclass(frozen=True, kw_only=True)
class Sizings:
    """The needs of a trainer, with the registry's dedup and without, and how they were measured."""

    sides: dict[str, Sizing]
    rounds: int
    steps: int
    held: int
    """The number of batches that each rank held, and was fed again and again."""
    device: str
    cores: int
    load: float
    """The machine's load before the measurement."""

    def summary(self) -> dict[str, Any]:
        """As JSON has it."""
        sides = {name: side.summary() for name, side in self.sides.items()}
        return {**asdict(self), "sides": sides}


def measured_sizings(
    registry: Path,
    overrides: Sequence[str],
    *,
    rounds: int,
    steps: int,
    batches: int,
    margin: float,
    show: Progress,
) -> Sizings:
    """Train the registry from memory on `train.ranks` ranks, then let one worker make its batches;
    both with the registry's dedup, if it has one, and without."""
    from recd_plugins import load
    from recd_plugins.api.training import step_seconds

    load_before = os.getloadavg()[0]
    stack = load(registry, overrides)
    for slot in ("dataset", "model"):
        stack.registry.one(slot)
    stack.prepare(show)
    options = _reader_options(stack)
    # If one side makes something unused, that is not an error of the registry.
    every = [*overrides, *_enabled(stack.registry.plugins), "strict=false"]
    sides = {WITHOUT: [*every, "dedup=null"]}
    if stack.groups:
        sides = {WITH: every, **sides}
    local = _reader({"use": "local", **options})
    ranks = stack.registry.train.ranks
    with closing(load(registry, [*sides[WITHOUT], *local]).read(0, ranks)) as loader:
        held = max(1, min(HELD, len(loader)))
    show(f"training from memory, {rounds} x {steps} steps of each side", 0, None)
    fed = [[*side, *local] for side in sides.values()]
    seconds = step_seconds(registry, fed, rounds=rounds, steps=steps, held=held)
    service = _reader({"use": "recd_dsi:service", "workers": 1, "shared_memory_mib": 0, **options})
    train, found = stack.registry.train, {}
    for (name, side), each in zip(sides.items(), seconds, strict=True):
        one = load(registry, [*side, *service])
        supply = _measured_supply(one, batches, partial(show, f"batches {name}"))
        found[name] = Sizing(
            ranks=train.ranks,
            batch_size=train.batch_size,
            step_ms=tuple(1e3 * second for second in each),
            supply=supply,
            margin=margin,
        )
    return Sizings(
        sides=found,
        rounds=rounds,
        steps=steps,
        held=held,
        device=stack.device,
        cores=len(os.sched_getaffinity(0)),
        load=load_before,
    )


def _measured_supply(stack: Stack, batches: int, met: Callable[[int, int], None]) -> Supply:
    """The work of the one worker of a registry while all its batches are taken, at least `batches`
    of them, after a start. It makes some ahead: only those that it served count."""
    loader: Any = stack.loader(0, stack.registry.train.ranks)
    sizes: list[int] = []
    with closing(loader), closing(_endless(loader)) as source:
        _take(source, 2 * LOOK, sizes)
        before, began = _about(loader), time.perf_counter()
        now = before
        while (served := now["served"] - before["served"]) < batches:
            met(served, batches)
            _take(source, LOOK, sizes)
            now = _about(loader)
        seconds = time.perf_counter() - began
        loader.fleet().close()
    made = now["made"] - before["made"]
    busy = now["processor_seconds"] - before["processor_seconds"]
    return Supply(
        batches=served,
        seconds=seconds,
        processor_seconds=busy * served / made if made else busy,
        batch_bytes=round(sum(sizes) / len(sizes)),
    )


def _endless(loader: Iterable[Batch]) -> Generator[Batch, None, None]:
    while True:
        yield from loader


def _take(source: Iterator[Batch], batches: int, sizes: list[int]) -> None:
    from recd_plugins.api.batch import batch_to_record

    for batch in islice(source, batches):
        if len(sizes) < MOST_SIZES:
            sizes.append(batch_to_record(batch).nbytes)


def _about(loader: Any) -> dict[str, Any]:
    """The work that the worker has done so far."""
    remotes = loader.fleet().remotes()
    if loader.read_here or not remotes:
        raise CapabilityError(
            "the worker stopped answering while it was measured. Check what it printed, and "
            "measure again."
        )
    found: dict[str, Any] = remotes[0].caller.act("about", {}, DEADLINE)
    return found


def _reader_options(stack: Stack) -> dict[str, Any]:
    """The options of the registry's reader on which a worker's work depends."""
    choice = stack.registry.one("reader")
    if choice.record.name not in ("local", "service"):
        raise RegistryError(
            f"is {choice.record.name}, but only `local` and `service` read by workers, which are "
            "measured here. Choose one of them.",
            "reader",
        )
    return {name: getattr(choice.config, name) for name in SAME}


def _enabled(plugins: Sequence[str]) -> list[str]:
    """The override that enables the service's plugin besides the registry's own, if needed."""
    return [] if "recd_dsi" in plugins else [f"plugins={json.dumps([*plugins, 'recd_dsi'])}"]


def _reader(values: dict[str, Any]) -> list[str]:
    """The overrides that give a registry this reader: they first remove its own reader with all
    options, so that no notice is given about them."""
    return ["reader=null", f"reader={json.dumps(values)}"]


def sizing_lines(found: Sizings) -> Iterator[str]:
    """The sizings as lines of text, with a column for each side."""
    sides = found.sides
    first = next(iter(sides.values()))
    stretches = ", ".join(
        f"{one.supply.batches:,} in {one.supply.seconds:.1f} s {name}"
        for name, one in sides.items()
    )
    yield (
        f"measured on {so_many(found.cores, 'core')} (load {found.load:.1f} before), the trainer "
        f"on {found.device}: {so_many(found.rounds, 'round')} of {so_many(found.steps, 'step')} of "
        f"{so_many(first.ranks, 'rank')}, each fed from {so_many(found.held, 'batch')} of "
        f"{so_many(first.batch_size, 'sample')} in memory; then batches of one worker, over the "
        f"wire: {stretches}"
    )
    rows: dict[str, Callable[[Sizing], str]] = {
        "the trainer takes, samples/s": lambda one: f"{one.demand * one.batch_size:,.0f}",
        "one worker makes, samples/s": lambda one: f"{one.supply.rate * one.batch_size:,.0f}",
        "its processor time, ms a batch": lambda one: (
            f"{1e3 * one.supply.processor_seconds / one.supply.batches:,.1f}"
        ),
        "a batch on the wire, KiB": lambda one: f"{one.supply.batch_bytes / 1024:,.1f}",
        f"workers, {first.margin:g} x takes / makes": lambda one: f"{one.workers:,}",
        "cores that they keep busy": lambda one: f"{one.cores:.2f}",
        "MiB/s on the wire": lambda one: f"{one.bytes_per_second / MIB:,.1f}",
    }
    yield f"{'':36}" + "".join(f"{name:>16}" for name in sides)
    for what, shown in rows.items():
        yield f"{what:36}" + "".join(f"{shown(one):>16}" for one in sides.values())
    if WITH not in sides:
        yield "registry.yaml deduplicates nothing: `recd advise` says whether it would pay."
    yield (
        f"reader: {{use: service, workers: {first.workers_of_a_rank}}}  # of each of "
        f"{so_many(first.ranks, 'rank')}, {next(iter(sides))}"
    )
