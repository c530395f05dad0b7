"""One table for the tests that only read it."""

from __future__ import annotations

import pytest
from known_rows import ROWS, write

from recd_plugins.data.table import Table


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Table:
    return write(tmp_path_factory.mktemp("data") / "table", ROWS)
