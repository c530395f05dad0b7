"""Values, then a run of a command: tables in a folder that takes no files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from forked import run_module

import recd_plugins as rp
from recd_plugins.errors import RegistryError


def test_a_folder_that_is_a_file_is_named_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    registry = {"plugins": ["recd_dlrm"], "dataset": {"use": "sessions", "samples": 64}}
    stack = rp.load(registry, [f"folder={tmp_path / 'data'}"])
    with pytest.raises(
        RegistryError, match=r"^folder: .*/data, which takes no files \(File exists"
    ):
        stack.prepare()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a /proc")
def test_tables_are_not_awaited_where_none_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(
        "plugins: [recd_dlrm]\nfolder: /proc\ndataset: {use: sessions, samples: 64}\n"
    )
    done = run_module("recd_plugins", "data", "prepare", folder=tmp_path)
    assert done.code == 2
    assert "error: folder: tables are written to /proc, which takes no files (" in done.err
