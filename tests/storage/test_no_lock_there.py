"""A run of a command in a folder that takes no file: nobody has its lock, and none is awaited."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from forked import run_module


@pytest.mark.skipif(sys.platform != "linux", reason="needs a /proc")
def test_tables_are_not_awaited_where_none_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(
        "plugins: [recd_dlrm]\nfolder: /proc\ndataset: {use: sessions, samples: 64}\n"
    )
    done = run_module("recd_plugins", "data", "prepare", folder=tmp_path)
    assert done.code == 2
    assert "error: folder: tables are written to /proc, which takes no file (" in done.err
