"""What all tests share: how hypothesis draws, and where the real data lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run; and a busy machine is slow, not wrong.
settings.register_profile("recd", deadline=None, derandomize=True)
settings.load_profile("recd")


@pytest.fixture(scope="session")
def real_data(pytestconfig: pytest.Config) -> Callable[[str], Path]:
    """`real_data("criteo/kaggle_8k.tsv")`: its path; a skip where it is absent."""

    def find(name: str) -> Path:
        path = pytestconfig.rootpath.parent / "shared" / "data" / name
        if not path.exists():
            pytest.skip(f"needs the real {name} beside the project, in ../shared/data")
        return path

    return find
