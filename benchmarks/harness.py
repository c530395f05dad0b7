"""What all suites share: figures with their conditions, and sides that are measured in turn.

Both sides of a comparison alternate in one process, so that whatever slows the machine down slows
both; a figure is the median over the rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

__all__ = [
    "ALLOCATOR",
    "NOT_MEASURED",
    "Figure",
    "Limit",
    "Report",
    "Round",
    "alternate",
    "conditions_of",
    "dropped",
    "have_allocator",
    "main",
    "new_garbage_alone",
    "print_json",
    "print_table",
    "shown",
    "spread",
]

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 33),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
"""By default glibc returns large memory at once, and then page faults favour the side that
allocates less. With these settings it keeps its memory, for both sides."""

NOT_MEASURED = "not measured"
"""The setting with which a suite says what it left out, and why; it is printed on its own line."""

PACKAGES = (
    *("torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "pyarrow", "numpy"),
    *("ray", "datasets"),
)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The bound of a figure by the work that nobody can avoid."""

    value: float
    """In the figure's unit."""
    of: str
    """What that work is, and what it does not include."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    """The other side's value, in the same unit."""
    target: float | None = None
    """What `value` should reach."""
    at_most: bool = False
    """Whether `value` should not exceed its target, or is above its limit, such as a time."""
    limit: Limit | None = None
    """What bounds `value`."""
    spread: float | None = None
    """The interquartile range over the rounds, as a share of the median."""
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    @property
    def share(self) -> float | None:
        """The share of its limit that `value` reaches: 1 at the limit."""
        if self.limit is None or not self.value or not self.limit.value:
            return None
        reached = self.value / self.limit.value
        return 1 / reached if self.at_most else reached


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a suite has measured, and with which of its own settings."""

    figures: Sequence[Figure]
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Round:
    """One run of one side."""

    wall: float
    """Seconds."""
    cpu: float
    """Seconds of processor time of this process, over all threads."""
    result: Any


def alternate(
    sides: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    of: str,
    seconds: float = math.inf,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[Round]]:
    """Run all sides `rounds` times, in turn, in reverse order in every other round.

    A first round warms up and does not count. A side that has been measured for `seconds` is left
    out of later rounds. `before` is called before each turn of a side, and not measured. `of` names
    the figure to whoever waits for it.
    """
    measured: dict[str, list[Round]] = {name: [] for name in sides}
    names = list(sides)
    with new_garbage_alone():
        for number in range(rounds + 1):
            _say(of, number, rounds)
            for name in names:
                if sum(one.wall for one in measured[name]) >= seconds:
                    continue
                before()
                gc.collect()
                wall, cpu = time.perf_counter(), time.process_time()
                result = sides[name]()
                one = Round(time.perf_counter() - wall, time.process_time() - cpu, result)
                if number:
                    measured[name].append(one)
            names.reverse()
    return measured


@contextmanager
def new_garbage_alone() -> Iterator[None]:
    """Inside, garbage collections do not look at objects that existed before: for what was
    imported, each of them would take 0.1 s."""
    if gc.get_freeze_count():  # somebody froze objects already: more would stay frozen for good
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def dropped(call: Callable[[], object]) -> Callable[[], None]:
    """A side for `alternate` whose result is not kept: otherwise each round would use new memory,
    which is slow at first use. A step reuses the memory of earlier steps."""

    def run() -> None:
        call()

    return run


def spread(values: Sequence[float]) -> float:
    """The interquartile range as a share of the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def main(
    suite: str,
    measure: Callable[[bool], Report],
    argv: Sequence[str] | None = None,
    *,
    keeps_memory: bool = True,
    about: str | None = None,
) -> None:
    """The command line of a suite. `measure` is called with whether to be quick. A suite that
    measures neither memory nor time has the system's allocator (`keeps_memory=False`). `--help`
    ends with `about`."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{suite}", epilog=about)
    parser.add_argument("--quick", action="store_true", help="less data and fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(argv)
    allocator = ALLOCATOR if keeps_memory else {}
    if keeps_memory:
        have_allocator()
    load = os.getloadavg()[0]
    report = measure(options.quick)
    settings = {"quick": options.quick, "allocator": allocator}
    conditions = conditions_of(report, load=load, settings=settings)
    if options.json:
        print_json(suite, conditions, report.figures)
    else:
        print_table(suite, conditions, report.figures)


def have_allocator() -> None:
    """Start this program again if it has not the allocator of suites, for glibc reads its settings
    when a process starts."""
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, sys.orig_argv, os.environ | ALLOCATOR)


def conditions_of(
    report: Report, *, load: float, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What figures depend on: `load` is the machine's load before the measurement, `settings` are
    those of the command line."""
    return {
        "machine": {**_machine(), "load_average_before": round(load, 2)},
        "versions": _versions(),
        "settings": {**report.settings, **(settings or {})},
        "seed": report.seed,
    }


def print_json(suite: str, conditions: Mapping[str, Any], figures: Sequence[Figure]) -> None:
    """Print the single object that every suite prints for `--json`."""
    print(json.dumps({"suite": suite, "conditions": conditions, "figures": shown(figures)}))


def shown(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Figures in the form for JSON."""
    return [dataclasses.asdict(one) | {"met": one.met, "share": one.share} for one in figures]


def print_table(suite: str, conditions: Mapping[str, Any], figures: Sequence[Figure]) -> None:
    """Print the table that a suite prints by default; below it, what does not fit into a line of 80
    characters, and the conditions."""
    table = Table(title=suite, box=SIMPLE_HEAD)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("figure", overflow="fold", min_width=26)
    for column in ("value", "target", "spread"):
        table.add_column(column, justify="right", no_wrap=True)
    for number, one in enumerate(figures, 1):
        spread = "" if one.spread is None else f"{one.spread:.1%}"
        table.add_row(f"{number}", one.name, f"{one.value:,.4g} {one.unit}", _target(one), spread)
    console = Console()
    console.print(table)
    for number, one in enumerate(figures, 1):
        if notes := "; ".join(_notes(one)):
            console.print(f"{number}: {notes}", highlight=False, markup=False)
    if left := conditions["settings"].get(NOT_MEASURED):
        console.print(f"{NOT_MEASURED}: {left}", highlight=False, markup=False)
    for name, value in conditions.items():
        console.print(f"{name}: {value}", highlight=False, markup=False)


def _target(one: Figure) -> str:
    if one.target is None:
        return ""
    return f"{'≤' if one.at_most else '≥'} {one.target:,.4g}{', met' if one.met else ', missed'}"


def _notes(one: Figure) -> Iterator[str]:
    if one.note:
        yield one.note
    if one.baseline not in (None, 1):
        yield f"baseline {one.baseline:,.4g}"
    if one.limit is not None:
        reached = "" if one.share is None else f", of which {one.share:.0%} is reached"
        yield f"limit {one.limit.value:,.4g}{reached}: {one.limit.of}"


def _machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _say(figure: str, number: int, rounds: int) -> None:
    """Print what is measured: on a terminal, round by round on one line; in a file, once."""
    if sys.stderr.isatty():
        end = "\n" if number == rounds else "\r"
        print(f"{figure}: round {number} of {rounds}", end=end, file=sys.stderr, flush=True)
    elif not number:
        print(figure, file=sys.stderr, flush=True)
