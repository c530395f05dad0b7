"""Rung 1 (values): slopes of what a job holds, and the processes that are a job's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.soak.__main__ import slope
from benchmarks.soak.watched import Held, _held


def held(seconds: float, memory: float) -> Held:
    return Held(seconds=seconds, step=0, memory=memory, shared=0, handles=5, threads=2, processes=1)


def test_a_slope_is_not_bent_by_a_look_at_a_bad_moment() -> None:
    looks = [held(float(second), 100 + 3.0 * second) for second in range(20)]
    looks[7] = held(7.0, 5_000)
    middle, low, high = slope(looks, "memory")
    assert middle == pytest.approx(3)
    assert low <= 3 <= high < 4
    assert slope(looks, "handles") == (0, 0, 0)


def test_what_comes_and_goes_is_no_growth_and_what_stays_is() -> None:
    """Workers of an epoch take 60 for most of its time; some 2 of each are never given back."""
    epochs = [held(float(look), 200 + 60 * (look % 8 > 1)) for look in range(80)]
    assert slope(epochs, "memory") == (0, 0, 0)
    leaking = [
        held(one.seconds, one.memory + 2 * (number // 8)) for number, one in enumerate(epochs)
    ]
    middle, low, _ = slope(leaking, "memory")
    assert middle == pytest.approx(2 / 8)
    assert low > 0


def test_what_all_processes_of_a_job_hold_is_added_up() -> None:
    """Of a job of its own: what this process has had others start may end meanwhile."""
    script = "read go; sleep 600 & echo started; read end; kill $!"
    job = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert job.stdin is not None
    assert job.stdout is not None
    with job, job.stdin as told, job.stdout as says:
        alone = _held(job.pid, 0.0, 0)
        told.write(b"go\n")
        told.flush()
        assert says.readline() == b"started\n"
        with_child = _held(job.pid, 0.0, 0)
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
        held = _held(parent.pid, 0.0, 0)
        parent.communicate()
    assert held.processes == 2
    assert 64 << 20 <= held.memory < 96 << 20
