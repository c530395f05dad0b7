"""One to three gloo ranks: a signal to any of them stops all after the same step."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from recd_plugins.data.growing import NotClosed, closed_period
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.stop_signal import Stopped, StopSignal


def steps_until_stopped(
    asked: Mapping[int, tuple[int, int]], most: int = 12
) -> tuple[int, bool, float]:
    """On a rank: `asked[rank]` is the step in which the rank is sent which signal.

    The steps taken, whether the handlers are as before, and an all-reduce of ones afterwards.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    stop = StopSignal()
    step = 0
    try:
        while step < most and not stop.agreed():
            when, number = asked.get(dist.get_rank(), (-1, 0))
            if step == when:
                os.kill(os.getpid(), number)
            dist.barrier()  # a step: ranks meet in it
            step += 1
    finally:
        stop.close()
    total = torch.ones(1)
    dist.all_reduce(total)
    return step, [signal.getsignal(number) for number in numbers] == before, float(total)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("rank", "when"), [(0, 4), (1, 4), (0, 0), (1, 10)])
def test_one_ranks_signal_stops_all_after_the_next_step(
    rank: int, when: int, number: signal.Signals, gloo_pool: GlooPool
) -> None:
    found = gloo_pool.run(steps_until_stopped, {rank: (when, int(number))})
    # Sent in step `when` (from 0), agreed upon during the next one, which is the last.
    assert found == [(when + 2, True, 2.0)] * 2


def test_the_first_of_several_signals_counts(gloo_pool: GlooPool) -> None:
    asked = {0: (7, int(signal.SIGINT)), 2: (3, int(signal.SIGTERM))}
    assert gloo_pool.run(steps_until_stopped, asked, world_size=3) == [(5, True, 3.0)] * 3


def test_without_a_signal_all_go_on(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(steps_until_stopped, {}) == [(12, True, 2.0)] * 2
    # One that comes too late for an agreement changes nothing either.
    assert (
        gloo_pool.run(steps_until_stopped, {1: (11, int(signal.SIGINT))}) == [(12, True, 2.0)] * 2
    )


def test_one_rank_stops_itself(gloo_pool: GlooPool) -> None:
    found = gloo_pool.run(steps_until_stopped, {0: (2, int(signal.SIGINT))}, world_size=1)
    assert found == [(4, True, 1.0)]


def looks_at_a_period(closes: Mapping[int, int], asked: Mapping[int, int]) -> tuple[int, Any]:
    """On a rank: its looks until the wait for a period ended, and what it found, if it was not
    stopped. `closes[rank]` is the look at which the period is closed there, `asked[rank]` the one
    at which the rank is sent Ctrl-C."""
    rank, looks, found = dist.get_rank(), 0, None

    def period(number: int) -> str:
        nonlocal looks
        looks += 1
        if asked.get(rank) == looks:
            os.kill(os.getpid(), signal.SIGINT)
        if looks < closes[rank]:
            raise NotClosed("a writer is silent")
        return f"period {number}"

    stop, dataset = StopSignal(), SimpleNamespace(period=period, patience=60.0)
    try:
        with mock.patch("recd_plugins.data.growing.LOOK_EVERY", 0.0), suppress(Stopped):
            found = closed_period(dataset, 3, together=stop.together)
    finally:
        stop.close()
    return looks, found


def test_ranks_that_wait_for_a_period_go_on_together_and_stop_together(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(looks_at_a_period, {0: 2, 1: 5}, {}) == [(5, "period 3")] * 2
    assert gloo_pool.run(looks_at_a_period, {0: 2, 1: 99}, {1: 4}) == [(4, None)] * 2
