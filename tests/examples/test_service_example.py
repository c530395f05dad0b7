"""Rung 4 (an example run): coordinator and worker are killed; training loses what the local
reader's does."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator

import pytest
from forked import start_server

from recd_dsi.service.process_fleets import end_workers


@pytest.fixture
def _forked_workers() -> Iterator[None]:
    start_server()
    yield
    end_workers()


@pytest.mark.ranks
@pytest.mark.usefixtures("_forked_workers")
def test_losses_are_the_local_readers_to_the_bit(run_example: Callable[..., str]) -> None:
    with socket.socket() as free:  # nobody else is given its port while it does not listen
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        printed = run_example("service.py", "6000", str(free.getsockname()[1]))
    step, steps = re.search(r"after step (\d+) of (\d+) the coordinator and a", printed).groups()
    assert int(step) < int(steps) / 2  # in the midst of an epoch
    same, of, first, last = re.search(
        r"(\d+) of (\d+) losses equal to the bit, from (\S+) to (\S+)", printed
    ).groups()
    assert int(same) == int(of) == int(steps) > 50
    assert float(last) < float(first)  # it learns
