"""Raw files to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def raw(tmp_path: Path) -> Callable[..., Path]:
    """Writes a raw file of these lines."""

    def write(*content: bytes, name: str = "raw.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join(content))
        return path

    return write
