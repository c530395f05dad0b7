"""Kills, stops and hangs: a job of two ranks is interrupted at any moment, and then resumed.

Whatever was done to it, it ends in time and says of whom; what trains on reports what a job that
nobody interrupted does.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.faults.cases import Breach, Case, Kind, breaches_of
from benchmarks.faults.jobs import JOB, RUN, written
from benchmarks.faults.programs import Ended, Place, Program
from recd_plugins.trainer.checkpoints.step_folders import checkpoints_in

__all__ = ["INTERRUPTIONS"]

LIMIT = 240.0
"""Seconds for a job that trains in three."""
RANKS = 2
HANG_AFTER = 8.0
"""Seconds without a step; many times what a step takes, where each process has a processor."""
LINES = 20
"""Lines of metrics that the job prints."""

TRAIN = {
    **JOB["train"],
    "ranks": RANKS,
    "batch_size": 16,
    "steps": 10 * LINES,
    "log_every": 10,
    "checkpoint_every": 25,
    "eval_every": 60,
    "hang_after": HANG_AFTER,
}

DATASET = {**JOB["dataset"], "samples": 2_048}
"""Some three epochs, each of which starts workers of its own, where there are any."""
WITH_WORKERS = 0.2
"""The share of jobs whose ranks have others read for them."""

HANGING = '''"""A callback that hangs a rank, after a step."""

import re
import time
from dataclasses import dataclass
from threading import Lock

from recd_plugins.api import Callback, CallbackRecord, Config, hookimpl


@dataclass(frozen=True, kw_only=True)
class Hanging(Config):
    """Which rank hangs when, and how."""

    rank: int
    step: int
    how: str


class Hangs(Callback):
    def __init__(self, config):
        self.config = config

    def after_step(self, training):
        if (training.rank, training.step) != (self.config.rank, self.config.step):
            return
        match self.config.how:
            case "sleep":
                time.sleep(1_000)
            case "lock":
                with (lock := Lock()):
                    lock.acquire()
            case "loop":
                while True:
                    pass
            case "no Python":
                re.match("(a*)*b", 40 * "a")
            case "fifo":
                open("a_fifo").read()


@hookimpl
def recd_callbacks():
    make = lambda config, context: Hangs(config)
    return [CallbackRecord(name="hangs", summary="", config=Hanging, build=make)]
'''
HOW = ("sleep", "lock", "loop", "no Python", "fifo")


@dataclass(frozen=True)
class Signalled:
    """What is sent to whom, and how a job may end by it."""

    number: signal.Signals
    whom: str
    codes: Sequence[int]
    goes_on: bool = False
    """Whether it is continued after a second."""


SIGNALS = (
    Signalled(signal.SIGKILL, "the launcher", (-signal.SIGKILL,)),
    Signalled(signal.SIGKILL, "rank 0", (1,)),
    Signalled(signal.SIGKILL, "rank 1", (1,)),
    Signalled(signal.SIGINT, "the launcher", (0, 130)),
    Signalled(signal.SIGTERM, "the launcher", (0, 130, 143)),
    Signalled(signal.SIGTERM, "rank 0", (0, 1)),
    Signalled(signal.SIGTERM, "rank 1", (0, 1)),
    Signalled(signal.SIGSTOP, "rank 0", (1,)),
    Signalled(signal.SIGSTOP, "rank 1", (1,)),
    Signalled(signal.SIGSTOP, "rank 0", (0,), goes_on=True),
    Signalled(signal.SIGSTOP, "rank 1", (0,), goes_on=True),
    Signalled(signal.SIGSTOP, "the launcher", (0,), goes_on=True),
)


def draw(generator: random.Random) -> Iterator[Case]:
    while True:
        workers = int(generator.random() < WITH_WORKERS)
        if generator.random() < 0.25:
            yield _hang(
                generator.choice(HOW),
                generator.randrange(RANKS),
                generator.randrange(1, 10 * LINES),
                workers,
            )
            continue
        # A tenth of the signals comes before the ranks train, the others after a line they print.
        lines = 0 if generator.random() < 0.1 else generator.randrange(1, LINES)
        yield _signal(generator.choice(SIGNALS), lines, generator.uniform(0, 0.5), workers)


def _signal(what: Signalled, lines: int, pause: float, workers: int) -> Case:
    def interrupt(place: Place) -> Iterator[Breach]:
        program = place.start("train", _patience())
        if not _reached(program, lines, pause):
            yield from breaches_of(program.wait(LIMIT), codes=(0,))
            return
        _send(program, what.number, what.whom)
        if what.goes_on:
            time.sleep(1)
            _send(program, signal.SIGCONT, what.whom)
        ended = program.wait(LIMIT)
        # It may have ended before it was reached, or have had no rank yet.
        yield from _of_interest(ended, (0, *what.codes))
        if ended.code == 1 and "rank " not in ended.errors:
            yield Breach("unclear", f"no word of which rank: {ended.errors[-500:]}")

    sent = f"{what.number.name}{', and SIGCONT after a second,' if what.goes_on else ''}"
    when = f"{pause:.2f} s after line {lines}" if lines else f"{pause:.2f} s after its ranks start"
    return _case(f"{sent} to {what.whom}, {when}", interrupt, workers)


def _hang(how: str, rank: int, step: int, workers: int) -> Case:
    def interrupt(place: Place) -> Iterator[Breach]:
        place.write("hanging.py", HANGING)
        os.mkfifo(place.folder / "a_fifo")
        callback = f"callbacks=[{{use: hangs, rank: {rank}, step: {step}, how: {how}}}]"
        plugins = f"plugins={[*JOB['plugins'], './hanging.py']}"
        ended = place.recd("train", plugins, callback, _patience(), limit=LIMIT)
        yield from _of_interest(ended, (1,))
        if f"rank {rank} hangs" not in ended.errors or "hanging.py" not in ended.errors:
            yield Breach("unclear", f"no word of rank {rank} and where: {ended.errors[-800:]}")
        stacks = sorted(path.name for path in (place.folder / RUN / "stacks").glob("*"))
        if stacks != [f"rank-{one}.txt" for one in range(RANKS)]:
            yield Breach("unclear", f"stacks of {stacks} alone")

    return _case(f"rank {rank} hangs after step {step}: {how}", interrupt, workers)


def _case(what: str, interrupt: Callable[[Place], Iterator[Breach]], workers: int) -> Case:
    def run(place: Place) -> Iterator[Breach]:
        made = place.made(f"interrupted-{workers}", partial(_prepare, workers))
        shutil.copytree(made, place.folder, dirs_exist_ok=True)
        expected = _metrics(place.folder / "whole")
        (place.folder / "whole").rename(place.folder.with_name(f"{place.folder.name}.whole"))
        yield from interrupt(place)
        checkpoints = place.folder / RUN / "checkpoints"
        kept = bool(checkpoints_in(checkpoints))
        again = place.recd("train", _patience(), *(["--resume"] if kept else []), limit=LIMIT)
        yield from breaches_of(again, codes=(0,))
        if again.code == 0:
            yield from _differences(expected, _metrics(place.folder / RUN))
        if torn := [path.name for path in checkpoints.glob("*.part")]:
            yield Breach("left behind", f"{', '.join(torn)} among the checkpoints")

    return Case(what=f"{what}, with workers" if workers else what, run=run)


def _patience() -> str:
    """Longer where processes wait for each other's processors."""
    crowding = max(os.getloadavg()[0] / len(os.sched_getaffinity(0)), 1.0)
    return f"train.hang_after={HANG_AFTER * crowding:.0f}"


def _prepare(workers: int, place: Place) -> None:
    """Train the job that nobody interrupts: what it reports lies in `whole`."""
    reader = {"use": "local", "workers": workers}
    place.write(
        "registry.yaml", written({**JOB, "dataset": DATASET, "reader": reader, "train": TRAIN})
    )
    ended = place.recd("train", limit=300)
    if ended.code != 0:
        raise SystemExit(f"the job that is to be interrupted does not train: {ended.output}")
    (place.folder / RUN).rename(place.folder / "whole")
    shutil.rmtree(place.folder / "runs")


def _of_interest(ended: Ended, codes: Sequence[int]) -> Iterator[Breach]:
    """What is broken; a killed launcher cannot remove its temporary files."""
    for breach in breaches_of(ended, codes=codes):
        files = breach.promise == "left behind" and not breach.what.startswith("process")
        if not (files and ended.code < 0):
            yield breach


def _differences(
    expected: dict[tuple[str, int], str], found: dict[tuple[str, int], str]
) -> Iterator[Breach]:
    if expected.keys() != found.keys():
        lost = sorted(expected.keys() ^ found.keys())
        yield Breach("silent change", f"metrics that only one of the two runs has: {lost[:5]}")
    for key in expected.keys() & found.keys():
        if expected[key] != found[key]:
            yield Breach("silent change", f"{key}: {found[key]} instead of {expected[key]}")
            return


def _metrics(run: Path) -> dict[tuple[str, int], str]:
    """What a run reports of what it learned, by kind and step, without what a clock says."""
    found = {}
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["kind"] in ("train", "test"):
            line.pop("samples_per_second", None)
            found[line["kind"], line["step"]] = json.dumps(line, sort_keys=True)
    return found


def _reached(program: Program, lines: int, pause: float) -> bool:
    """Wait until it has printed so many lines of metrics, or has its ranks, and then a while;
    whether it runs still."""
    while program.running():
        if lines and program.output().count("\ntrain step") >= lines:
            break
        if not lines and len(_ranks(program.pid)) == RANKS:
            break
        time.sleep(0.01)
    time.sleep(pause)
    return program.running()


def _send(program: Program, number: signal.Signals, whom: str) -> None:
    if whom == "the launcher":
        program.signal(number)
        return
    rank = int(whom.removeprefix("rank "))
    ranks = _ranks(program.pid)
    if len(ranks) > rank:
        os.kill(ranks[rank], number)


def _ranks(launcher: int) -> list[int]:
    """The processes that a launcher's server forked, by rank."""
    return [rank for server in _children(launcher) for rank in _children(server)]


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        found = {int(one) for task in tasks for one in (task / "children").read_text().split()}
    except OSError:
        return []
    return sorted(found)


INTERRUPTIONS = Kind(name="interruptions", draw=draw, quick=12, full=150)
