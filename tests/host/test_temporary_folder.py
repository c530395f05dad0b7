"""Value tests: a temporary folder takes away what killed processes left, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from recd_plugins.storage.temporary_folder import temporary_folder

HOLDS_ONE = """
import sys
from recd_plugins.storage.temporary_folder import temporary_folder

with temporary_folder("recd-tried-") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_and_what_is_held_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    names = (
        "recd-tried-file.recd",
        "recd-tried-link.recd",
        "recd-other.recd",
        "recd-tried-results",
    )
    file, link, *folders = others = [tmp_path / name for name in names]
    file.touch()
    link.symlink_to(folders[0])
    for folder in folders:
        folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        with temporary_folder("recd-tried-") as mine:
            assert {*tmp_path.iterdir()} == {*others, held, mine}
        process.kill()
    assert held.is_dir()
    with temporary_folder("recd-tried-") as mine:
        assert {*tmp_path.iterdir()} == {*others, mine}
    assert {*tmp_path.iterdir()} == {*others}
