"""Ladder: processes of our own. What is left of one that started a fork server and was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from forked import run_module

from recd_plugins.errors import CapabilityError
from recd_plugins.launch.environment import PARENT
from recd_plugins.launch.fork_server import SHORT, folder_made_here

STARTS = """
import time
from multiprocessing.util import get_temp_dir
from recd_plugins.launch.fork_server import fork_server
process = fork_server().Process(target=print, args=("forked",))
process.start()
process.join()
print(get_temp_dir(), flush=True)
"""
LIMIT = 300
"""Seconds until something takes too long."""


def test_a_process_that_is_killed_leaves_no_folder_of_sockets() -> None:
    command = [sys.executable, "-c", f"{STARTS}\ntime.sleep({LIMIT})"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        forked, folder = (process.stdout.readline().strip() for _ in range(2))
        assert forked == "forked"
        assert any(Path(folder).iterdir())
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + LIMIT
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(folder).exists()


RANKS = """
import os, signal
from recd_plugins.launch.ranks import Ranks, RankStart
if __name__ == "__main__":
    ranks = Ranks([RankStart(environment={})], preload=[])
    assert any(files for *_, files in os.walk(os.environ["TMPDIR"]) if "printed" in files)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_nothing_that_its_ranks_printed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RANKS)
    with tempfile.TemporaryDirectory() as folder:  # sockets allow no path as long as tmp_path's
        environment = {**os.environ, "TMPDIR": folder}
        done = subprocess.run([sys.executable, program], env=environment, timeout=LIMIT)
        assert done.returncode == -signal.SIGKILL
        deadline = time.monotonic() + LIMIT
        while any(Path(folder).rglob("printed")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(Path(folder).rglob("printed"))


KILLED = """
import os, signal
from recd_plugins.compat.copied_server import copy_as_fork_server
from recd_plugins.launch.fork_server import fork_server
if COPY:
    assert copy_as_fork_server()
lock = fork_server().Lock()
print("made", os.environ.get("PYTHONWARNINGS"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("copy", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_of_one_that_is_killed_nobody_says_what_it_left(
    copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for what a rank said. Locks are removed, by a process of Python's."""
    if copy and (sys.platform != "linux" or torch.version.cuda is not None):
        pytest.skip("processes are copied on Linux, where torch is built for the CPU")
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    command = [sys.executable, "-c", f"COPY = {copy}\n{KILLED}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "made None\n", "")


LEADS = """
import time
from multiprocessing.util import get_temp_dir
from recd_plugins.launch.environment import die_with_parent
from recd_plugins.launch.fork_server import fork_server
context = fork_server()
die_with_parent()
print(get_temp_dir(), flush=True)
time.sleep(600)
"""


def test_one_that_ends_with_its_launcher_leaves_no_folder_of_sockets() -> None:
    """It leads a session, as ranks do, and kills all in it, the server too."""
    ours, launcher = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", LEADS],
        env={**os.environ, PARENT: str(ours)},
        pass_fds=[ours],
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    ) as leader:
        os.close(ours)
        assert leader.stdout is not None
        folder = Path(leader.stdout.readline().strip())
        assert folder.is_dir()
        os.close(launcher)
        assert leader.wait(LIMIT) == -signal.SIGKILL
    assert not folder.exists()


def printed_by(program: str) -> list[str]:
    """The words that a program printed, which ended without an error."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.stderr == ""
    return done.stdout.split()


CHATTERS = """
import logging
from recd_plugins.launch.fork_server import fork_server
process = fork_server().Process(target=logging.getLogger("torch.fx").warning, args=("chatter",))
process.start()
process.join()
print(process.exitcode)
"""


def test_what_torch_logs_in_its_processes_is_errors_alone() -> None:
    assert printed_by(CHATTERS) == ["0"]


def test_one_that_ends_leaves_none_either() -> None:
    forked, folder = printed_by(STARTS)
    assert forked == "forked"
    assert not Path(folder).exists()


def test_sockets_lie_elsewhere_where_the_temporary_folder_has_too_long_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / ("a-job-of-a-cluster-" * 5)
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    program = f"{STARTS}\nimport tempfile\nprint(tempfile.gettempdir())"
    forked, folder, usual = printed_by(program)
    assert forked == "forked"
    assert Path(folder).parent == Path(SHORT[0])
    assert not Path(folder).exists()
    assert usual == str(temporary)


def test_a_process_that_has_no_place_for_sockets_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    monkeypatch.setattr("recd_plugins.launch.fork_server.SHORT", ("/no/such/folder",))
    with pytest.raises(
        CapabilityError, match="Set TMPDIR to a folder whose path has at most 75 bytes"
    ):
        folder_made_here()


WORKS = """
import sys, time
from pathlib import Path
from recd_plugins.launch.environment import die_with_parent
die_with_parent(only=True)
Path("NAME-works").touch()
while not Path("NAME-ends").exists():
    time.sleep(0.01)
sys.exit(7)
"""
STOPPED = """
import subprocess
from multiprocessing import forkserver
from pathlib import Path
from recd_plugins.compat.copied_server import copy_as_fork_server
from recd_plugins.launch.fork_server import fork_server

def started(name):
    process = fork_server().Process(target=exec, args=(WORKS.replace("NAME", name),))
    process.start()
    while not Path(f"{name}-works").exists() and process.is_alive():
        pass
    return process

if COPY:
    assert copy_as_fork_server()
first = started("first")
for pid in (first.pid, forkserver._forkserver._forkserver_pid):
    for name in ("-INT", "-TERM"):
        subprocess.run(["/bin/sh", "-c", f"kill {name} {pid}"], check=True)
second = started("second")
Path("first-ends").touch()
second.terminate()
for process in (first, second):
    process.join()
    print(process.exitcode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("copy", [False, True])
def test_signals_to_all_processes_leave_workers_to_their_rank(
    copy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun and schedulers send such, and the rank has a checkpoint to save; it can end a worker
    all the same."""
    if copy and (sys.platform != "linux" or torch.version.cuda is not None):
        pytest.skip("processes are copied on Linux, where torch is built for the CPU")
    monkeypatch.chdir(tmp_path)
    program = f"WORKS, COPY = {WORKS!r}, {copy}\n{STOPPED}"
    assert printed_by(program) == ["7", str(128 + signal.SIGTERM)]


BESIDE_A_THREAD = """
from recd_plugins.launch.fork_server import fork_server
process = fork_server("starts_a_thread").Process(target=print, args=("forked",))
process.start()
process.join()
"""


def test_no_warning_tells_of_a_librarys_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As jemalloc's, by which Arrow allocates: Python has the warning since 3.12."""
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\n"
        f"threading.Thread(target=time.sleep, args=({LIMIT},), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    assert printed_by(BESIDE_A_THREAD) == ["forked"]


SHARES = """
import os
from multiprocessing.util import get_temp_dir
from recd_plugins.launch.fork_server import fork_server

def child():
    again = fork_server().Process(target=print, args=("forked",))
    again.start()
    again.join()
    print(get_temp_dir(), flush=True)

get_temp_dir()
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
print(os.path.isdir(get_temp_dir()), get_temp_dir())
"""


def test_a_child_leaves_its_parents_folder_alone() -> None:
    forked, childs, there, ours = printed_by(SHARES)
    assert (forked, there) == ("forked", "True")
    assert childs == ours
    assert not Path(ours).exists()


COPIES = """
import os
from recd_plugins.compat.copied_server import copy_as_fork_server
from recd_plugins.launch.fork_server import fork_server
os.environ["MARK"] = "before"
print(copy_as_fork_server(), flush=True)
os.environ["MARK"] = "after"
says = "import os, sys; print(os.environ['MARK'], os.getppid(), 'torch' in sys.modules)"
process = fork_server().Process(target=exec, args=(says,))
process.start()
process.join()
print(process.exitcode, os.getpid(), copy_as_fork_server())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or torch.version.cuda is not None,
    reason="processes are copied on Linux, where torch is built for the CPU",
)
def test_workers_of_a_copy_find_what_it_had(tmp_path: Path) -> None:
    (tmp_path / "copies.py").write_text(COPIES)
    done = run_module("copies", folder=tmp_path)
    assert (done.code, done.err) == (0, "")
    copied, mark, parent, has_torch, code, pid, again = done.out.split()
    assert (mark, has_torch, code) == ("before", "True", "0")
    assert parent != pid
    assert (copied, again) == ("True", "False")  # it has one
