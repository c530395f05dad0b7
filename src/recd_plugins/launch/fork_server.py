"""The server that workers are forked from: it has imported what they need, and starts no thread."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import warnings
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.util import get_temp_dir
from pathlib import Path

from recd_plugins.errors import CapabilityError, listed

__all__ = [
    "SOCKETS",
    "folder_made_here",
    "fork_server",
    "keep_quiet_of_threads",
    "outlive_stops",
    "remove_folder_made_here",
    "start_quiet_tracker",
    "thread_count",
    "torch_is_for_cpu",
]

SAFE_PATH = "PYTHONSAFEPATH"
"""Python's variable by which an interpreter does not look for modules where it is started."""

WARNINGS = "PYTHONWARNINGS"
"""Python's variable by which an interpreter leaves out warnings."""

SOCKETS = "RECD_FORK_SERVER_SOCKETS"
"""The variable that names the folder of its socket to a server; those that it forks lack it."""

LONGEST = 107
"""Bytes of the path of a socket, on Linux."""
SOCKET = "/pymp-12345678/listener-12345678"
"""As multiprocessing names them in the temporary folder."""
SHORT = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders for sockets where that one's name is too long, as a job's on a cluster may be."""
_MADE: dict[int, str] = {}
"""The folder for sockets that a process made, which processes forked from it do not own."""


def fork_server(*preload: str) -> ForkServerContext:
    """multiprocessing's context of the server, which runs when this returns and has imported the
    modules `preload`, if this process is the first to ask for it.

    No module that happens to lie in the current folder is imported by the server: multiprocessing
    starts it as `python -c`, which would look there first, for Python's own modules too. Workers
    look where the process does that asks for them. At its end the server removes the folder of its
    socket if this process has made that, for it may have been killed.
    """
    start_quiet_tracker()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["recd_plugins.launch.in_fork_server", *preload])
    for_the_server = {SAFE_PATH: "1", SOCKETS: folder_made_here()}
    before = {name: os.environ.get(name) for name in for_the_server}
    os.environ.update(for_the_server)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return context


def start_quiet_tracker() -> None:
    """Start the process that removes what this one, if it is killed, leaves of multiprocessing's.

    It would warn of that, where people are shown what a killed rank printed.
    """
    before = os.environ.get(WARNINGS)
    quiet = "ignore:resource_tracker:UserWarning"
    os.environ[WARNINGS] = f"{before},{quiet}" if before else quiet
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ[WARNINGS]
        else:
            os.environ[WARNINGS] = before


def folder_made_here() -> str:
    """The folder in which multiprocessing puts this process's sockets, if this call makes it.

    A process that multiprocessing has forked may use its parent's folder, which the parent removes;
    then this is empty. The folder lies in the temporary one, or in another one if the path of a
    socket there would be too long.
    """
    parent = _parent_of_sockets()
    try:
        there = set(os.listdir(parent))
    except OSError:  # which files may be made in, and not be listed
        return ""
    usual, tempfile.tempdir = tempfile.tempdir, parent  # where multiprocessing makes it
    try:
        folder = get_temp_dir()
    finally:
        tempfile.tempdir = usual
    if os.path.dirname(folder) != parent or os.path.basename(folder) in there:
        return ""
    _MADE[os.getpid()] = folder
    return folder


def remove_folder_made_here() -> None:
    """Remove the folder of this process's sockets, as its server would if it were not killed with
    this process."""
    if folder := _MADE.get(os.getpid()):
        shutil.rmtree(folder, ignore_errors=True)


def _parent_of_sockets() -> str:
    usual = tempfile.gettempdir()
    for parent in (usual, *SHORT):
        if len(os.fsencode(parent)) + len(SOCKET) <= LONGEST and os.access(parent, os.W_OK):
            return parent
    raise CapabilityError(
        f"the temporary folder {usual} is too long for sockets of worker processes, whose paths "
        f"have {LONGEST} bytes at most, and none of {listed(SHORT)} can be written to. Set TMPDIR "
        f"to a folder whose path has at most {LONGEST - len(SOCKET)} bytes."
    )


def keep_quiet_of_threads() -> None:
    """From now on multiprocessing forks from this process without a warning of its threads, which
    Python has since 3.12. The threads belong to libraries alone: to jemalloc, by which Arrow
    allocates, and which stops them while a process is forked."""
    warnings.filterwarnings(
        "ignore", "This process .* is multi-threaded", DeprecationWarning, r"multiprocessing\."
    )


def outlive_stops() -> None:
    """From now on this process, a server, does not end by SIGTERM or SIGHUP, which torchrun and
    schedulers send to all processes of a job: it ends once nobody is left who may ask it for
    workers. What it forks ends by them as ever."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def as_before() -> None:
        for number, answer in before.items():
            signal.signal(number, answer)

    for number in before:
        signal.signal(number, signal.SIG_IGN)
    os.register_at_fork(after_in_child=as_before)


def thread_count() -> int | None:
    """The number of threads of this process, with those of libraries; None if the system says
    nothing."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else None


def torch_is_for_cpu() -> bool:
    """Whether torch is a build for the CPU alone."""
    import torch

    return torch.version.cuda is None and torch.version.hip is None
