"""Value tests: a client of workers, of which none is there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from recd_dsi.service.fetching import BAND, Fetching, FetchingOptions, NobodyAnswers

PREFETCH = 64 << 20


@pytest.fixture
def fetching() -> Iterator[Fetching]:
    turns: Any = SimpleNamespace(ranges=lambda: [(0, 1000)], turn=lambda position: 0)
    nobody: Any = SimpleNamespace(seats=0, remotes=list)
    job: Any = None
    options = FetchingOptions(prefetch_bytes=PREFETCH)
    one = Fetching(job, 0, 0, 0, turns=turns, fleet=nobody, options=options)
    yield one
    one.close()


def wakes(fetching: Fetching, size: int, there: int, taken: int) -> list[int]:
    """Behind how many batches lanes are woken, of so many of a size that are there."""
    woken = []
    batch: Any = object()
    worker: Any = object()
    fetching._recent.extend([size] * 16)
    fetching._deliver(range(there), [(batch, size)] * there, worker)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fetching._room, "notify_all", lambda: woken.append(fetching._next))
        for _ in range(taken):
            assert fetching.get() is batch
    return woken


def test_a_trainer_wakes_lanes_once_half_of_many_small_batches_are_left(
    fetching: Fetching,
) -> None:
    assert wakes(fetching, 1 << 10, there=400, taken=400)[0] == 160  # 240 of 512 are left
    assert fetching.stalled == 0


def test_a_trainer_wakes_lanes_for_each_large_batch(fetching: Fetching) -> None:
    assert wakes(fetching, PREFETCH // 4, there=4, taken=3) == [1, 2, 3]


def test_what_waits_is_counted_until_it_is_closed(fetching: Fetching) -> None:
    wakes(fetching, 1 << 10, there=2 * BAND, taken=BAND)
    assert fetching.held_bytes == BAND << 10
    fetching.close()
    assert fetching.held_bytes == 0


def test_a_wait_in_vain_counts_as_stalled(fetching: Fetching) -> None:
    fetching._fleet.seats = 1
    fetching._options = FetchingOptions(patience=0.05)
    with pytest.raises(NobodyAnswers):
        fetching.get()
    assert fetching.stalled >= 0.05
