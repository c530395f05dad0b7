"""Rung 1 (values): what waits without end where a file is meant is refused by every reader."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from recd_plugins.data.importing.table_files import files_of
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.trace import Trace
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.storage.no_file import no_file


def test_what_is_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes
    Path("file").touch()
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    Path("link").symlink_to("file")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        named = {
            "file": "",
            "link": "",
            "none": "",
            "/dev/fd/0": "",
            "pipe": "a pipe",
            "loop": "a link that leads to itself",
            "socket": "a socket",
            "/dev/zero": "a device",
            ".": "a folder",
        }
        assert {path: no_file(Path(path)) for path in named} == named


@pytest.mark.parametrize(
    "read",
    [Table.open, Trace.load, Profile.load, TierPlan.load, lambda path: files_of([path])],
    ids=["table", "trace", "profile", "plan", "import"],
)
def test_no_reader_waits_for_a_pipe(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(DataError, match=r"pipe.parquet: is a pipe, not a file"):
        read(tmp_path / "pipe.parquet")


@pytest.mark.parametrize(
    "read", [Table.open, lambda path: files_of([path])], ids=["table", "import"]
)
def test_no_reader_waits_for_a_pipe_among_other_files_or_leaves_it_out(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "whole.parquet").touch()
    with pytest.raises(DataError, match=r"pipe.parquet: is a pipe, not a file"):
        read(tmp_path)
