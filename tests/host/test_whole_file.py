"""Rung 1 (values, on files): files are there whole, or as they were before."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recd_plugins.storage.whole_file import whole_file, write_whole


def test_a_file_is_replaced_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.svg").symlink_to("folder/file.svg")
    write_whole(tmp_path / "link.svg", "new")
    assert (tmp_path / "folder/file.svg").read_text() == "new"
    assert (tmp_path / "link.svg").is_symlink()


@pytest.mark.parametrize("late", [False, True])
def test_what_fails_changes_nothing(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "plan.svg").write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if late:
        monkeypatch.setattr(os, "fsync", full)

    def written() -> None:
        with whole_file(file) as part:
            assert part.suffix == ".svg"
            part.write_text("half")
            if not late:
                full()

    with pytest.raises(OSError, match="No space") as caught:
        written()
    assert caught.value.filename == str(file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


WRITES = """
import sys
from pathlib import Path

from recd_plugins.storage.whole_file import write_whole

write_whole(Path(sys.argv[1]), "second, and longer")
"""


def test_two_writers_at_a_time_may_be_of_one_number(tmp_path: Path) -> None:
    """As processes of two containers may be; here they are one."""
    file = tmp_path / "plan.svg"
    with whole_file(file) as first:
        first.write_text("first, and not whole")
        write_whole(file, "second")
        assert file.read_text() == "second"
        first.write_text("first")
    assert file.read_text() == "first"
    assert list(tmp_path.iterdir()) == [file]


def test_of_two_writers_at_a_time_the_last_ones_file_is_there(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    with whole_file(file) as first:
        first.write_text("first")
        subprocess.run([sys.executable, "-c", WRITES, file], check=True)
        assert file.read_text() == "second, and longer"
    assert file.read_text() == "first"
    assert list(tmp_path.iterdir()) == [file]
