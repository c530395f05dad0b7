"""Ladder: processes of our own. What is left of one that started a fork server and was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

STARTS = """
import time
from multiprocessing.util import get_temp_dir
from recd_plugins.launch.fork_server import fork_server
process = fork_server().Process(target=print, args=("forked",))
process.start()
process.join()
print(get_temp_dir(), flush=True)
time.sleep({sleep})
"""


def started(sleep: float) -> tuple[subprocess.Popen[str], Path]:
    """A process with a fork server, and the folder of its sockets."""
    command = [sys.executable, "-c", STARTS.format(sleep=sleep)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline().strip() for _ in range(2)]
    assert said[0] == "forked"
    return process, Path(said[1])


def test_a_process_that_is_killed_leaves_no_folder_of_sockets() -> None:
    process, folder = started(sleep=600)
    assert any(folder.iterdir())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 120
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()


def test_one_that_ends_leaves_none_either() -> None:
    process, folder = started(sleep=0)
    process.communicate()
    assert process.returncode == 0
    assert not folder.exists()


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
    done = subprocess.run([sys.executable, "-c", SHARES], capture_output=True, text=True)
    assert done.stderr == ""
    forked, childs, there, ours = done.stdout.split()
    assert (forked, there) == ("forked", "True")
    assert childs == ours
    assert not Path(ours).exists()
