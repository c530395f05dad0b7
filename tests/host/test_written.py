"""Property tests: a file that cannot be written is refused, and nothing is left behind."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import typer

from recd_plugins.cli.options import reported
from recd_plugins.cli.written import check_writable
from recd_plugins.errors import RegistryError
from recd_plugins.trainer.run_folder import set_aside


def test_what_can_be_written_passes(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_text("")
    check_writable(None, "--save")
    check_writable(tmp_path / "deep" / "down" / "plan.arrow", "--save")
    check_writable(tmp_path / "old.png", "--figure", (".png",))
    assert [one.name for one in tmp_path.iterdir()] == ["old.png"]


def test_what_cannot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, says in (
        (tmp_path, "is a folder. Name a file"),
        (tmp_path / "file" / "plan.png", "cannot be written, for .*file takes no files"),
        (Path("/proc/none/plan.png"), "cannot be written, for /proc takes no files"),
        (tmp_path / "plan.xyz", "must end in one of .png"),
    ):
        with pytest.raises(RegistryError, match=says) as caught:
            check_writable(path, "--figure", (".png",))
        assert str(caught.value).startswith(f"--figure: {path}")
    with pytest.raises(RegistryError, match="is a file, not a folder"):
        set_aside(tmp_path / "file")


def test_what_the_system_refuses_is_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for rights that a user lacks; one for a defect of ours."""
    with pytest.raises(typer.Exit) as ended, reported(debug=False):
        raise PermissionError(errno.EACCES, "Permission denied", "/home/else/run")
    assert ended.value.exit_code == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(typer.Exit), reported(debug=False):
        (tmp_path / "file" / "run").mkdir()
    said = capsys.readouterr().err
    assert "error: /home/else/run: Permission denied. Name another path, or see to" in said
    assert f"error: {tmp_path}/file/run: Not a directory. Name another path" in said
    with pytest.raises(FileNotFoundError), reported(debug=False):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "ours")
