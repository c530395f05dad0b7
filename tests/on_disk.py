"""Some tests need files on a disk, where a folder for temporary ones may lie in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from recd_plugins.tiers.mapped_tables import IN_MEMORY, file_system

__all__ = ["on_disk"]


def on_disk(folder: Path) -> Path:
    """The folder, if it lies on a disk; else the test is skipped."""
    if (kind := file_system(folder)) in IN_MEMORY:
        pytest.skip(f"needs a temporary folder on a disk; {folder} lies on {kind}")
    return folder
