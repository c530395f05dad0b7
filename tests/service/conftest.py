"""Tables that these tests only read; workers are forked from the server of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import start_server
from service_jobs import write_tables

from recd_dsi.service.process_fleets import end_workers


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(tmp_path_factory.mktemp("service"))


@pytest.fixture(autouse=True)
def server(request: pytest.FixtureRequest) -> None:
    """Workers start at once, where a test has some."""
    if request.node.get_closest_marker("ranks"):
        start_server()


@pytest.fixture(scope="session", autouse=True)
def _workers() -> Iterator[None]:
    yield
    end_workers()
