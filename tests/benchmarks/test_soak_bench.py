"""Rung 1 (values): slopes of what a job holds, and the processes that are a job's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.soak.__main__ import _figures, slope
from benchmarks.soak.watched import Held, Watched, _held


def held(step: int, memory: float) -> Held:
    return Held(step=step, memory=memory, shared=0, handles=5, threads=2, processes=1)


def test_a_slope_is_not_bent_by_a_look_at_a_bad_moment() -> None:
    looks = [held(step, 100 + 3.0 * step) for step in range(20)]
    looks[7] = held(7, 5_000)
    middle, low, high = slope(looks, "memory")
    assert middle == pytest.approx(3)
    assert low <= 3 <= high < 4
    assert slope(looks, "handles") == (0, 0, 0)


def test_what_comes_and_goes_is_no_growth_and_what_stays_is() -> None:
    """Workers of an epoch take 60 for most of its time; some 2 of each are never given back."""
    epochs = [held(look, 200 + 60 * (look % 8 > 1)) for look in range(80)]
    assert slope(epochs, "memory") == (0, 0, 0)
    leaking = [held(one.step, one.memory + 2 * (one.step // 8)) for one in epochs]
    middle, low, _ = slope(leaking, "memory")
    assert middle == pytest.approx(2 / 8)
    assert low > 0


def test_the_warm_up_ends_with_a_third_of_the_steps_however_long_it_takes() -> None:
    """A machine gets quicker: of 100 looks 90 come in the 2,700 steps in which a job grows."""
    growing = [held(30 * look, (1000 + look) * 2**20) for look in range(90)]
    settled = [held(2_700 + 600 * look, 1090 * 2**20) for look in range(10)]
    watched = Watched(looks=[*growing, *settled], code=0, left=[])
    figures = {one.name: one for one in _figures("job", watched)}
    memory = figures["job: growth of memory, at least"]
    assert (memory.value, memory.met) == (0, True)
    assert memory.note.startswith("+0.0, at most +0.0, of 1,090.0 MiB, in 5,400 steps: +0.00 KiB")
    assert figures["job: left behind"].met
    still = Watched(looks=[held(5, 1.0)] * 3, code=0, left=[])
    with pytest.raises(SystemExit, match="job has made 5 steps, too few to say"):
        next(_figures("job", still))


def test_what_all_processes_of_a_job_hold_is_added_up() -> None:
    """Of a job of its own: what this process has had others start may end meanwhile."""
    # A fork that says itself that it is there, and runs nothing else in its place: it could be
    # looked at in between.
    script = "echo up; read go; exec 3<&0; (echo started; read end <&3) & wait"
    job = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert job.stdin is not None
    assert job.stdout is not None
    with job, job.stdin as told, job.stdout as says:
        assert says.readline() == b"up\n"  # before, its own libraries may be open
        alone = _held(job.pid, 0)
        told.write(b"go\n")
        told.flush()
        assert says.readline() == b"started\n"
        with_child = _held(job.pid, 0)
        told.write(b"end\n")
    assert (alone.processes, alone.threads) == (1, 1)
    assert (with_child.processes, with_child.threads) == (2, 2)
    assert with_child.handles >= alone.handles + 3


FORKED = """
import os, sys
kept = bytearray(b"x") * (64 << 20)
os.fork()
os.write(1, b"there\\n")
sys.stdin.read()
"""


def test_pages_that_processes_share_count_once() -> None:
    """Of a forked worker too, though each of the two has all of them."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", FORKED], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == [b"there\n"] * 2
        held = _held(parent.pid, 0)
        parent.communicate()
    assert held.processes == 2
    assert 64 << 20 <= held.memory < 96 << 20
