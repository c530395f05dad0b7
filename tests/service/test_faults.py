"""Rung 3 (worker processes): workers are killed, stopped and refused at random times; batches stay.

More trials than these: `python -m benchmarks.service --trials N`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from service_jobs import stack_of, until

from recd_dsi.service.fleet import Fleet
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.reader import end_workers
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.resume import assert_same_batch

pytestmark = pytest.mark.ranks
SERVICE = {"use": "service", "workers": 2, "hedge": 0.3, "patience": 120, "prefetch_mib": 1}
"""However long workers take to come back, ranks wait for them."""


@pytest.fixture(autouse=True)
def _workers_of_each_test_alone() -> Iterator[None]:
    yield
    end_workers()


@pytest.fixture(scope="module")
def undisturbed(tables):
    loader = stack_of(tables, {"use": "local"}, "ikjt").loader(0, 1)
    return [*loader, *loader]


def fleet_of(loader) -> Fleet:
    assert isinstance(loader, ServiceLoader)
    return loader.fleet()


def pids(loader) -> list[int]:
    backend = fleet_of(loader).backend
    assert backend is not None
    return [pid for pid in backend.pids if pid is not None]


def read_while(loader, disturb, seed: int) -> list:
    """Two epochs, in which `disturb(pids)` is called at three times by chance."""
    chance = random.Random(seed)
    fleet_of(loader)
    at = sorted(chance.sample(range(1, 2 * len(loader) - 1), 3))
    found = []
    for _ in range(2):
        for batch in loader:
            found.append(batch)
            if len(found) in at:
                until(lambda: pids(loader))  # all may have been killed just before
                disturb(pids(loader), chance)
    return found


def kill_one(found, chance) -> None:
    kill_all([chance.choice(found)], chance)


def kill_all(found, chance) -> None:
    for pid in found:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.kill(pid, signal.SIGKILL)


def stop_one(found, chance) -> None:
    """It hangs, and goes on later."""
    pid = chance.choice(found)
    os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        time.sleep(2.0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    threading.Thread(target=go_on, daemon=True).start()


@pytest.mark.parametrize("disturb", [kill_one, kill_all, stop_one])
def test_batches_are_those_of_an_undisturbed_run(tables, undisturbed, disturb):
    loader = stack_of(tables, SERVICE, "ikjt").loader(0, 1)
    found = read_while(loader, disturb, seed=5)
    assert len(found) == len(undisturbed)
    for theirs, ours in zip(undisturbed, found, strict=True):
        assert_same_batch(theirs, ours)
    assert loader.read_here == 0


def test_a_rank_reads_itself_and_says_so_or_fails_where_nobody_answers(tables, undisturbed):
    for then in ("read", "fail"):
        reader = {**SERVICE, "when_none_answers": then, "patience": 0.3}
        loader = stack_of(tables, reader, "ikjt").loader(0, 1)
        backend = fleet_of(loader).backend
        assert backend is not None
        backend.close()
        if then == "fail":
            with pytest.raises(DataError, match=r"no worker has answered for 0\.3 s"):
                list(loader)
            continue
        with pytest.warns(NoticeWarning, match="rank 0 reads by itself until one does"):
            there = list(loader)
        for theirs, ours in zip(undisturbed, there, strict=False):
            assert_same_batch(theirs, ours)
        assert loader.read_here == len(loader)


def test_a_worker_of_another_registry_is_refused_by_digest(tables):
    other = stack_of(tables, SERVICE, "ikjt", seed=4).loader(0, 1)
    loader = stack_of(tables, SERVICE, "ikjt").loader(0, 1)
    fleet = fleet_of(other)
    loader.fleet = lambda: fleet
    theirs, ours = other.job.delivery, loader.job.delivery
    assert theirs != ours
    with pytest.raises(RegistryError, match=rf"registry {theirs} .* asked for registry {ours}"):
        list(loader)


def test_a_slow_trainer_is_not_run_ahead_of(tables):
    """What waits in the client is bounded by bytes, however long the trainer takes."""
    loader = stack_of(tables, SERVICE, "kjt", batch_size=8).loader(0, 1)
    room = 1 << 14  # of which the epoch has a multiple
    loader._options = dataclasses.replace(loader._options, prefetch_bytes=room)
    batches = iter(loader)
    next(batches)
    looks: list[int] = []

    def steady() -> bool:
        looks.append(loader.fetching.held_bytes)
        return looks[-1] > 0 and len(set(looks[-20:])) == 1 and len(looks) >= 20

    until(steady)
    assert looks[-1] <= 2 * room
    before = len(loader) - 1
    assert sum(1 for _ in batches) == before
