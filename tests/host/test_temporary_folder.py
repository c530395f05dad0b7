"""Value tests: a temporary folder takes away what killed processes left, and nothing else."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import warnings
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


def test_a_folder_that_is_removed_before_it_is_locked_leaves_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process that took it for one that is left."""
    made: list[Path] = []

    class Removed(tempfile.TemporaryDirectory[str]):
        def __init__(self, suffix: str, prefix: str) -> None:
            super().__init__(suffix, prefix, tmp_path)
            made.append(Path(self.name))
            if len(made) == 1:
                made[0].rmdir()

    monkeypatch.setattr(tempfile, "TemporaryDirectory", Removed)
    with warnings.catch_warnings(record=True) as warned, temporary_folder("recd-tried-") as mine:
        gc.collect()
        assert [mine] == made[1:]
    assert not warned
    assert not [*tmp_path.iterdir()]
