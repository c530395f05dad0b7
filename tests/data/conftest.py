"""One table for the tests that only read it."""

from __future__ import annotations

import pytest
from forked import start_server
from known_rows import ROWS, write

from recd_plugins.data.table import Table


@pytest.fixture(autouse=True)
def server(request: pytest.FixtureRequest) -> None:
    """Workers of readers start at once, where a test has some."""
    if request.node.get_closest_marker("ranks"):
        start_server()


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Table:
    return write(tmp_path_factory.mktemp("data") / "table", ROWS)
