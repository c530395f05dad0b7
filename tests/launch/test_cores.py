"""A process counts the processors that it may use, and not all that the machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recd_plugins.launch.cores import cores_of_a_rank, usable_cores
from recd_plugins.registry.settings import TrainSettings

BOUND = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({}, BOUND),
        ({"cpu.max": "max 100000\n"}, BOUND),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, min(BOUND, 64)),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, BOUND),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_a_container_has_no_more_than_its_quota(
    limits: dict[str, str], found: int, tmp_path: Path
) -> None:
    for name, text in limits.items():
        at = tmp_path / "sys/fs/cgroup" / name
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)
    assert usable_cores(tmp_path) == found


@pytest.mark.parametrize(("parents", "found"), [(32, 8), (8, 2)])
def test_a_rank_that_is_bound_alone_has_all_that_it_is_bound_to(
    parents: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = {0: set(range(8)), os.getppid(): set(range(parents))}
    monkeypatch.setattr("os.sched_getaffinity", bound.__getitem__)
    assert cores_of_a_rank(4) == found


@pytest.mark.skipif(BOUND < 2, reason="needs two processors, to be bound to one")
def test_ranks_share_the_processors_that_their_job_is_bound_to() -> None:
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_of_them)})
    try:
        assert usable_cores() == 1
        assert TrainSettings().threads_of_each(1) == 1
        assert cores_of_a_rank(3) == 1
    finally:
        os.sched_setaffinity(0, all_of_them)
    assert TrainSettings().threads_of_each(1) == BOUND
    assert TrainSettings(threads=5).threads_of_each(2) == 5
