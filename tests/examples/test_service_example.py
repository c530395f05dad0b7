"""Rung 4 (an example run): a worker is killed, and training loses what the local reader's does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked import start_server

from recd_dsi.service.reader import end_workers

EXAMPLE = Path(__file__).parents[2] / "examples" / "service.py"


@pytest.fixture
def _forked_workers() -> Iterator[None]:
    start_server()
    yield
    end_workers()


@pytest.mark.ranks
@pytest.mark.usefixtures("_forked_workers")
def test_losses_are_the_local_readers_to_the_bit(run_example: Callable[..., str]) -> None:
    printed = run_example("service.py", "6000")
    assert re.search(r"after step \d+ of \d+ a worker of 3 was killed", printed), printed
    local, service = re.findall(r"^(?:local|service) +loss (\S+) -> (\S+)$", printed, re.MULTILINE)
    assert local == service
    equal = re.search(r"(\d+) of (\d+) losses are equal to the bit", printed)
    assert equal is not None
    assert int(equal[1]) == int(equal[2]) > 50
    assert float(local[1]) < float(local[0])  # it learns


def test_it_stays_thin() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
