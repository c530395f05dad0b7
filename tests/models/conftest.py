"""One thread for the tests of models."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def one_thread_in_each(one_thread: None) -> None:
    """Every test here asks for one thread."""
