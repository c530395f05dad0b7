"""What is made of where ranks stand (values); then two gloo ranks, of which one hangs."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch.distributed as dist

from recd_plugins.launch import ranks as launched
from recd_plugins.testing.gloo import GlooPool, RanksFailed
from recd_plugins.trainer import stop_signal
from recd_plugins.trainer import watchdog as watch
from recd_plugins.trainer.standing import Standing, main_frames, verdict, waits
from recd_plugins.trainer.watchdog import Watchdog

WAITING = "/site-packages/torch/distributed/distributed_c10d.py:3252 all_reduce"


def standing(rank: int, **what: object) -> Standing:
    values: dict[str, object] = {"host": "h1", "pid": 100 + rank, "marks": 9, "doing": "step 8"}
    return Standing(rank=rank, **{**values, "at": (WAITING,), "waits": True, **what})  # type: ignore[arg-type]


SILENT = {"silent": "is stopped (SIGSTOP or SIGTSTP)", "marks": 0, "doing": "", "waits": False}


@pytest.mark.parametrize(
    ("standings", "hang", "wait"),
    [
        ([standing(0), standing(1, **SILENT)], [1], [0]),
        # One that does not answer hangs, whatever the others do.
        ([standing(0, waits=False), standing(1), standing(2, **SILENT)], [2], [0, 1]),
        ([standing(0), standing(1, waits=False, at=("reader.py:3 read",))], [1], [0]),
        # It waits where the others do, for what they have done already.
        ([standing(0, marks=8, doing="step 7"), standing(1), standing(2)], [0], [1, 2]),
        ([standing(0), *(standing(n, **SILENT) for n in (1, 2))], [1, 2], [0]),
        ([standing(0, waits=False)], [0], []),
    ],
)
def test_who_hangs(standings: list[Standing], hang: list[int], wait: list[int]) -> None:
    text = verdict(standings, 30.0, Path("runs/a/stacks"))
    for rank in hang:
        assert f"rank {rank} hangs (process {100 + rank} of h1)" in text
    for rank in wait:
        assert f"\n  rank {rank} at step 8, in {WAITING}" in text
    assert text.count(" hangs (") == len(hang)
    assert "All ranks stand alike" not in text
    assert "no rank has made a step for 30 s (train.hang_after)" in text


def test_a_rank_at_the_agreement_of_a_step_waits_for_the_others() -> None:
    assert waits(f"{stop_signal.__file__}:56 agreed")
    assert not waits("reader.py:3 read")


def test_ranks_that_stand_alike_wait_for_each_other() -> None:
    text = verdict([standing(0), standing(1)], 30.0, Path("runs/a/stacks"))
    assert "All ranks stand alike" in text
    assert text.count(f"at step 8, in {WAITING}") == 2
    assert " hangs (" not in text


def test_of_many_ranks_a_few_are_described() -> None:
    many = [standing(rank, **(SILENT if rank < 6 else {})) for rank in range(100)]
    text = verdict(many, 30.0, Path("runs/a/stacks"))
    assert "So do the ranks 4, 5." in text
    assert "  and 90 more" in text
    assert len(text.splitlines()) < 30


def test_the_frames_of_a_thread_are_found_among_those_of_all() -> None:
    asleep = threading.Thread(target=time.sleep, args=(1,), daemon=True)
    asleep.start()
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        stacks = os.pread(file.fileno(), 1 << 20, 0).decode()
    ident = threading.main_thread().ident
    assert ident is not None
    here = sys._getframe()
    frames = main_frames(stacks, ident)
    assert frames[0].startswith(f"{here.f_code.co_filename}:")
    assert frames[0].endswith(here.f_code.co_name)
    assert len(frames) > 3
    assert main_frames(stacks, asleep.ident or 0) != frames
    assert main_frames(stacks, 1) == ()


def test_frames_have_the_names_that_files_have(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    program = "def größe(stacks):\n    faulthandler.dump_traceback(stacks)"
    exec(compile(program, "zü/€/𝄞.py", "exec"), {"faulthandler": faulthandler}, names)
    with (tmp_path / "stacks").open("w+b") as file:
        names["größe"](file)
    stacks = (tmp_path / "stacks").read_text("ascii")
    first, *_ = main_frames(stacks, threading.get_ident())
    assert first == "zü/€/𝄞.py:2 größe"


LIMIT = 4.0
"""Seconds without a mark after which a job ends: more than a busy machine keeps a rank waiting."""


PATIENCE = 60.0
"""Seconds in which a rank of a busy machine answers."""


def steps(
    folder: str, hangs: str = "", *, limit: float = LIMIT, number: int = 4, nap: float = 0.0
) -> float:
    """On a rank: marks and meets the other, until rank 1 hangs; the seconds that it took."""
    began = time.monotonic()
    with (
        patch.object(watch, "REFUSES", PATIENCE),
        # One that is stopped says nothing in any time.
        patch.object(watch, "ANSWERS", watch.ANSWERS if hangs == "stopped" else PATIENCE),
        Watchdog(limit, Path(folder)) as watchdog,
    ):
        for step in range(number):
            watchdog.mark(f"step {step}")
            dist.barrier()
            time.sleep(nap)
        if dist.get_rank() == 1:
            if hangs == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if hangs == "asleep":
                time.sleep(600)
        dist.barrier()
    return time.monotonic() - began


def starts(folder: str) -> None:
    """On a rank: rank 1 works for longer than a start without work may take, then it hangs."""
    with (
        patch.object(watch, "REFUSES", PATIENCE),
        patch.object(watch, "ANSWERS", PATIENCE),
        Watchdog(1.0, Path(folder), first=LIMIT) as watchdog,
    ):
        watchdog.mark("the tables", starting=True)
        if dist.get_rank() == 1:
            ends = time.monotonic() + 1.5 * LIMIT
            while time.monotonic() < ends:
                sum(range(1_000_000))  # more than nothing, and less than all of a core
                time.sleep(0.05)
            time.sleep(600)
        dist.barrier()


GETS_ON = 1.5 * LIMIT
"""The limit of ranks that get on. Their steps are short: a busy machine would have to keep one
waiting for nearly all of it."""

RUNS = {
    "before": (starts, {}),
    "asleep": (steps, {"hangs": "asleep"}),
    "stopped": (steps, {"hangs": "stopped"}),
    "gets on": (steps, {"limit": GETS_ON, "number": 22, "nap": GETS_ON / 20}),
}


class Run(NamedTuple):
    """What two ranks do, and where the stacks of them are put."""

    folder: Path
    seconds: Future[list[float]]

    def error(self) -> RanksFailed:
        """What became of them, as one hangs."""
        error = self.seconds.exception()
        assert isinstance(error, RanksFailed)
        return error


@pytest.fixture(scope="module")
def runs(
    gloo_pool: GlooPool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Run]]:
    """`RUNS`, side by side, each on ranks of its own: all that they do is wait. Rank 0 ends with
    all that is said, and nobody asks what becomes of the other."""
    begun = {}
    with (
        patch.object(launched, "GRACE", 0.0),
        ExitStack() as pools,
        ThreadPoolExecutor(len(RUNS)) as executor,
    ):
        for name, (function, options) in RUNS.items():
            pool = pools.enter_context(GlooPool(deadline=gloo_pool.deadline))
            pool.run(os.getpid)  # its ranks are there
            folder = tmp_path_factory.mktemp("stacks")
            begun[name] = Run(folder, executor.submit(pool.run, function, str(folder), **options))
        yield begun


def test_a_rank_that_hangs_before_the_first_step_is_named(runs: Mapping[str, Run]) -> None:
    said = runs["before"].error().ranks[0]
    hangs = next(
        number
        for number, line in enumerate(Path(__file__).read_text().splitlines(), start=1)
        if line == "            time.sleep(600)"
    )
    assert "no rank has made a step for 4 s (train.hang_after)" in said
    assert re.search(rf"rank 1 hangs .* at the tables, in\n    {__file__}:{hangs} starts", said), (
        said
    )


def test_while_ranks_get_on_nothing_happens(runs: Mapping[str, Run]) -> None:
    folder, seconds = runs["gets on"]
    assert max(seconds.result()) > GETS_ON  # marks count, not the whole
    assert not threads_of_a_watch()
    assert list(folder.iterdir()) == []


def threads_of_a_watch() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "watchdog"]


@pytest.mark.parametrize(
    ("hangs", "how"),
    [
        ("asleep", rf" at step 3, in\n    {re.escape(__file__)}:"),
        # One that is stopped goes on while its stacks are written: it may be some calls further.
        (
            "stopped",
            rf": it is stopped \(SIGSTOP or SIGTSTP\), in(\n    .*)*{re.escape(__file__)}:",
        ),
    ],
)
def test_a_rank_that_hangs_is_named_and_the_job_ends(
    hangs: str, how: str, runs: Mapping[str, Run]
) -> None:
    said = runs[hangs].error().ranks[0]
    assert said.startswith("died (exit code 3)")
    assert "rank 1 hangs (process " in said
    assert re.search(how, said), said
    assert "The others wait for it:\n  rank 0 at step 3, in " in said
    for rank in (0, 1):
        assert f"{__file__}" in (runs[hangs].folder / f"rank-{rank}.txt").read_text()
