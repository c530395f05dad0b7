"""The pytest plugin: the fixture `gloo_pool` and the option `--gloo-deadline`.

pytest loads this file in every run wherever the package is installed, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from recd_plugins.testing.gloo import GlooPool

__all__ = ["gloo_pool", "pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("recd_plugins")
    group.addoption(
        "--gloo-deadline",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long a call on the ranks of gloo_pool may take where the test says nothing",
    )


@pytest.fixture(scope="session")
def gloo_pool(pytestconfig: pytest.Config) -> Iterator[GlooPool]:
    """Ranks for the whole session: `gloo_pool.run(function, *args, world_size=2)`."""
    from recd_plugins.testing.gloo import GlooPool

    with GlooPool(deadline=pytestconfig.getoption("--gloo-deadline")) as pool:
        yield pool
