"""Rung 3 (worker processes): whatever dies, hangs or is damaged, losses and batches stay.

More trials than these: `python -m benchmarks.service --trials N`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import pytest
from service_jobs import KINDS, stack_of, until

from benchmarks.service.faults import FAULTS
from benchmarks.service.trials import prepare, trial
from recd_dsi.service import fetching
from recd_dsi.service.credentials import Credentials
from recd_dsi.service.fleet import Fleet, Remote
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.process_fleets import end_workers
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
    return list(loader)


def fleet_of(loader) -> Fleet:
    assert isinstance(loader, ServiceLoader)
    return loader.fleet()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trials") / "tables"
    prepare(folder, samples=1_500)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "kill -9 of all workers",
        "a worker hangs",
        "kill -9 of the rank",
        "a file replaced",
        "half-open connections",
    ],
)
def test_losses_are_those_of_an_undisturbed_run(trained, name):
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    assert not trial(trained, fault, seed=0)


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


def test_a_worker_of_another_registry_is_refused_by_digest_and_its_own_is_not(tables):
    other = stack_of(tables, SERVICE, "ikjt", seed=4).loader(0, 1)
    loader = stack_of(tables, SERVICE, "ikjt").loader(0, 1)
    fleet = fleet_of(other)
    loader.fleet = lambda: fleet
    theirs, ours = other.job.delivery, loader.job.delivery
    assert theirs != ours
    with pytest.raises(RegistryError, match=rf"registry {theirs} .* asked for registry {ours}"):
        list(loader)
    assert len(list(other)) == len(other)  # whom the same workers go on to serve


class Named(Fleet):
    """The workers of several services, as a coordinator would name them that has them join it."""

    def __init__(self, *named: Remote) -> None:
        super().__init__(Credentials(), len(named))
        self.named = list(named)

    def remotes(self) -> list[Remote]:
        return self.named


def test_a_worker_of_another_registry_beside_its_own_is_told_and_ends_no_job(tables, undisturbed):
    """As where workers get a new registry one by one: once its own are gone, the rank reads."""
    other = stack_of(tables, {**SERVICE, "workers": 1}, "ikjt", seed=4).loader(0, 1)
    loader = stack_of(tables, {**SERVICE, "patience": 0.3}, "ikjt").loader(0, 1)
    fleets = [fleet_of(one) for one in (loader, other)]
    until(lambda: all(one.remotes() for one in fleets))
    own, foreign = (one.remotes()[0] for one in fleets)
    own.seat, foreign.seat = 0, 1
    fleet = Named(own, foreign)
    loader.fleet = lambda: fleet
    batches = iter(loader)
    with pytest.warns(
        NoticeWarning, match="rank 0 asks others alone: the worker at .* of registry"
    ):
        there = [next(batches) for _ in range(len(loader) // 2)]
    fleet.named = [foreign]
    with pytest.warns(NoticeWarning, match=r"0\.3 s \(the worker at .*\): rank 0 reads by itself"):
        there += batches
    for theirs, ours in zip(undisturbed, there, strict=True):
        assert_same_batch(theirs, ours)
    assert loader.read_here


ENDS = """
import os
from recd_plugins.api import Config, PreprocessRecord, hookimpl

class Ends:
    elementwise = True

    def schema(self, schema):
        return schema

    def __call__(self, features):
        if os.getpid() != {here}:
            os._exit(3)  # as native code does that crashes
        return features

@hookimpl
def recd_preprocess():
    made = {{"config": Config, "build": lambda config, context: Ends()}}
    return [PreprocessRecord(name="ends", summary="Ends.", **made)]
"""


def test_a_transform_that_ends_each_worker_ends_the_epoch(tables, tmp_path, monkeypatch):
    """Workers that are started again, and end again, are no worker that will answer."""
    monkeypatch.setattr(fetching, "MOST_ENDED", 2)
    plugin = tmp_path / "ends_plugin.py"
    plugin.write_text(ENDS.format(here=os.getpid()))
    monkeypatch.setitem(KINDS, "ends", {"preprocess": [{"use": "ends", "features": ["item"]}]})
    loader = stack_of(tables, {**SERVICE, "workers": 1}, "ends", [str(plugin)]).loader(0, 1)
    with pytest.raises(DataError, match=r"2 workers ended, one after another, .* batch 0 of epoch"):
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
