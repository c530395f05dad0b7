"""Property tests: a file that cannot be written is refused, and nothing is left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from torch.distributed import DistStoreError

from recd_plugins.cli.main import printing
from recd_plugins.cli.output_paths import check_makable, check_writable
from recd_plugins.cli.reported import reported
from recd_plugins.errors import RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.arrow_file import write_arrow
from recd_plugins.storage.lock_file import written_alone
from recd_plugins.storage.whole_file import of_path
from recd_plugins.trainer.run_folder import check_is_run, check_resumable, set_aside
from recd_plugins.trainer.run_lock import RunLock, check_free


def test_what_can_be_written_passes(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_text("")
    check_writable(None, "--save")
    check_writable(tmp_path / "deep" / "down" / "plan.arrow", "--save")
    check_writable(tmp_path / "old.png", "--figure", (".png",))
    assert [one.name for one in tmp_path.iterdir()] == ["old.png"]


def test_what_cannot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for path, says in (
        (tmp_path, "is a folder. Name a file"),
        (tmp_path / "file" / "plan.png", "cannot be written, because .*file takes no files"),
        (Path("/proc/none/plan.png"), "cannot be written, because /proc takes no files"),
        (tmp_path / "plan.xyz", "must end in one of .png"),
        (Path("/dev/full"), "is a device, and the output can only replace a file"),
        (tmp_path / "pipe", "is a pipe, and the output can only replace a file"),
    ):
        with pytest.raises(RegistryError, match=says) as caught:
            check_writable(path, "--figure", (".png",))
        assert str(caught.value).startswith(f"--figure: {path}")
    with pytest.raises(RegistryError, match="is not a folder"):
        set_aside(tmp_path / "file")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    check_makable(tmp_path / "deep" / "table", "TABLE")
    (tmp_path / "file").write_text("")
    for folder, says in (
        (Path(), "TABLE: . is there already. Name a new folder"),
        (Path("/proc/x"), "TABLE: /proc/x cannot be written, because /proc takes no files"),
        (tmp_path / "file" / "table", "cannot be written, because .*file takes no files"),
    ):
        with pytest.raises(RegistryError, match=says):
            check_makable(folder, "TABLE")


def test_half_a_checkpoint_is_not_kept_with_its_run(tmp_path: Path) -> None:
    for name in ("step-00000002", "step-00000004.part"):
        (tmp_path / "run" / "checkpoints" / name).mkdir(parents=True)
    moved = set_aside(tmp_path / "run")
    assert moved == tmp_path / "run.1"
    assert [one.name for one in (moved / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_run_is_where_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "here")
    for run, says in (
        (".", "is the folder in which this command runs, or a folder above"),
        ("..", "is the folder in which this command runs, or a folder above"),
        ("/", "is the folder in which this command runs, or a folder above"),
        ("../loop", "is a link that leads to itself"),
        ("/proc/x", "cannot be written, because /proc takes no files"),
        ("/dev/null", "is not a folder"),
    ):
        with pytest.raises(RegistryError, match=f"train.run: {run} {says}"):
            check_is_run(Path(run))
    check_is_run(Path("new"))


def test_a_run_has_one_name_in_every_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard names its folder in UTF-8, whatever the locale."""
    monkeypatch.chdir(tmp_path)  # whose own name may have any letters
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    with pytest.raises(RegistryError, match=r"train\.run: Übung .* iso8859-1 .*PYTHONUTF8"):
        check_is_run(Path("Übung"))
    check_is_run(Path("plain"))
    monkeypatch.undo()
    check_is_run(Path("Übung"))


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "plan.arrow").symlink_to(tmp_path / "real" / "plan.arrow")
    for number in range(2):
        write_arrow(tmp_path / "plan.arrow", pa.table({"number": [number]}))
    assert (tmp_path / "plan.arrow").is_symlink()
    with pa.OSFile(str(tmp_path / "real" / "plan.arrow")) as file:
        assert pa.ipc.open_file(file).read_all()["number"].to_pylist() == [1]
    assert len(list((tmp_path / "real").iterdir())) == 1


def test_a_folder_that_is_no_run_stays_as_it_is(tmp_path: Path) -> None:
    thesis, run = tmp_path / "thesis", tmp_path / "latest"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("")
    with pytest.raises(
        RegistryError, match=r"thesis is not a run's folder: it holds chapter\.tex\. Name a"
    ):
        set_aside(thesis)
    assert (thesis / "chapter.tex").exists()
    (run / "checkpoints").mkdir(parents=True)
    assert set_aside(run) == tmp_path / "latest.1"
    run.mkdir()
    assert set_aside(run) is None


@pytest.mark.parametrize("there", [False, True])
def test_a_link_leads_to_the_new_run_and_the_one_before_is_beside_what_it_led_to(
    there: bool, tmp_path: Path
) -> None:
    disk, link = tmp_path / "disk", tmp_path / "runs" / "latest"
    link.parent.mkdir()
    link.symlink_to(disk / "run")
    if there:
        (disk / "run" / "checkpoints").mkdir(parents=True)
    assert set_aside(link) == (disk / "run.1" if there else None)
    assert link.is_symlink()
    assert not any((disk / "run").iterdir())
    assert [one.name for one in link.parent.iterdir()] == ["latest"]


def test_a_run_that_may_save_no_further_checkpoint_does_not_go_on() -> None:
    with tempfile.TemporaryDirectory() as folder:  # one that other users can come to
        run = Path(folder) / "run"
        (run / "checkpoints/step-00000010").mkdir(parents=True)
        Path(folder).chmod(0o755)
        run.chmod(0o755)  # which umask may have left to one user
        check_resumable(run)
        (run / "checkpoints").chmod(0o555)
        mine = os.geteuid()
        os.seteuid(mine or 65_534)  # root may write all
        try:
            with pytest.raises(
                RegistryError,
                match=r"^--resume: .*/checkpoints takes no files \(Permission denied\)",
            ):
                check_resumable(run)
        finally:
            os.seteuid(mine)
        (run / "checkpoints").chmod(0o755)


HOLDER = """
import sys, time
from pathlib import Path
from recd_plugins.trainer.run_folder import set_aside
from recd_plugins.trainer.run_lock import RunLock
with RunLock(Path(sys.argv[1])) as lock:
    lock.take()
    set_aside(Path(sys.argv[1]))
    print("holds", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("linked", [False, True])
def test_a_run_is_one_jobs_until_that_is_killed(linked: bool, tmp_path: Path) -> None:
    """By whatever link, of which what it leads to had a run before."""
    run = tmp_path / "latest"
    if linked:
        (tmp_path / "disk" / "checkpoints").mkdir(parents=True)
        run.symlink_to(tmp_path / "disk")
    check_free(run)
    command = [sys.executable, "-c", HOLDER, str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        says = rf"latest is being trained in by process {holder.pid} of .* since 2\d\d\d-"
        with pytest.raises(RegistryError, match=says):
            check_free(run)
        with pytest.raises(RegistryError, match=says), RunLock(run) as lock:
            lock.take()
        holder.kill()
    check_free(run)
    with RunLock(run) as lock:
        lock.take()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_run_is_trained_where_a_file_system_has_no_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lustre's by default, on many clusters; whoever trains there hears of it."""

    def none_here(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", none_here)
    with (
        pytest.warns(NoticeWarning, match="latest has no locks, so a second job"),
        RunLock(tmp_path / "latest") as lock,
    ):
        lock.take()
    with written_alone(tmp_path / "table.part", tmp_path / "table"):
        pass


def test_what_the_system_refuses_is_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for rights that a user lacks; one for a defect of ours."""
    with pytest.raises(typer.Exit) as ended, reported(debug=False):
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/run")
    assert ended.value.exit_code == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(typer.Exit), reported(debug=False):
        (tmp_path / "file" / "run").mkdir()
    said = capsys.readouterr().err
    assert "error: /elsewhere/run: Permission denied. Name another path, or check" in said
    assert f"error: {tmp_path}/file/run: Not a directory. Name another path" in said
    with pytest.raises(FileNotFoundError), reported(debug=False):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "ours")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            OSError(errno.EMFILE, "Too many open files", "t/a"),
            "t/a: Too many open files.*ulimit -n",
        ),
        (OSError(errno.EFBIG, "File too large", "t/a"), "t/a: File too large. .*`ulimit -f "),
        (BlockingIOError(errno.EAGAIN, ""), "Resource temporarily unavailable.*`ulimit -u`"),
        (OSError(errno.ENOMEM, ""), "Cannot allocate memory. Ask for fewer"),
        (RuntimeError("can't start new thread"), "can't start new thread.*`ulimit -u`"),
        (RuntimeError("Too many open files. Ask elsewhere"), "Too many open files. Have the sys"),
        (DistStoreError("Failed to init uv loop"), "Failed to init uv loop. .*open more files"),
        (
            FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/no']"),
            r"No usable temporary directory found in \['/no'\]. Let TMPDIR name",
        ),
        (UnicodeEncodeError("ascii", "größe", 2, 4, ""), "'öß' has no place in ascii.*PYTHONUTF8"),
    ],
)
def test_what_the_system_has_too_little_of_is_a_message(
    error: Exception, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, reported(debug=False):
        raise error
    assert ended.value.exit_code == 2
    assert re.search(f"error: {says}", capsys.readouterr().err)


def test_a_folder_that_was_removed_while_somebody_was_in_it_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for work in (os.getcwd, Path("data").mkdir):
        with pytest.raises(typer.Exit), reported(debug=False):
            work()
        assert "was called has been removed. Go to another" in capsys.readouterr().err
    with pytest.raises(typer.Exit), reported(debug=False):
        pytest.fail("a command begins, and imports torch, which ends the process here")


def test_what_cannot_be_printed_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether code that prints names the output or not."""
    for named in (nullcontext(), of_path(Path("standard output"))):
        with open("/dev/full", "w") as full:
            monkeypatch.setattr("sys.stdout", full)
            with pytest.raises(SystemExit) as ended, printing(), reported(debug=False), named:
                print("a row", flush=True)
        assert ended.value.code == 2
        told = capsys.readouterr().err
        assert told.startswith("error: what the command prints cannot be written: No space left")
        assert told.count("error: ") == 1
