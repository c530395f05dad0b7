"""The server that workers are forked from: it has imported what they need, and runs no thread.

It is an interpreter of its own, or a copy of the process whose workers they are.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["copy_as_fork_server", "for_cpu", "fork_server", "threads"]

SAFE_PATH = "PYTHONSAFEPATH"
"""Python's variable by which an interpreter does not look for modules where it is started."""

SOCKETS = "RECD_FORK_SERVER_SOCKETS"
"""The variable that names the folder of its socket to a server; those that it forks lack it."""


def fork_server(*preload: str) -> ForkServerContext:
    """multiprocessing's context of the server, which runs when this returns and has imported the
    modules `preload`, if this process is the first to ask for it.

    No module that happens to lie in the current folder is imported by the server: multiprocessing
    starts it as `python -c`, which would look there first, for Python's own modules too. Workers
    look where the process does that asks for them. At its end the server removes the folder of its
    socket if this process has made that, for it may have been killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["recd_plugins.launch.left_sockets", *preload])
    for_the_server = {SAFE_PATH: "1", SOCKETS: _folder_made_here()}
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


def _folder_made_here() -> str:
    """The folder in which multiprocessing puts this process's sockets, if this call makes it.

    One that multiprocessing has forked may use its parent's, which the parent removes.
    """
    parent = tempfile.gettempdir()
    try:
        there = set(os.listdir(parent))
    except OSError:  # which files may be made in, and not be listed
        return ""
    folder = get_temp_dir()
    made = os.path.dirname(folder) == parent and os.path.basename(folder) not in there
    return folder if made else ""


def copy_as_fork_server() -> bool:
    """Have this process's workers forked from a copy of it as it is now, if it can be copied;
    whether it was.

    A server that is an interpreter of its own takes seconds to import what is here already. A
    process can be copied while it has one thread, where torch is built for the CPU. One that does
    this before it loads or computes anything has workers that find what those of another server
    would.
    """
    server: Any = forkserver._forkserver  # no public name gives it another way to start
    if server._forkserver_pid is not None or threads() != 1 or not for_cpu():
        return False
    folder = _folder_made_here()
    with socket.socket(socket.AF_UNIX) as listener:
        address = tempfile.mktemp(prefix="listener-", dir=get_temp_dir())
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen()
        alive, ours = os.pipe()
        for stream in (sys.stdout, sys.stderr):  # or what waits there would be printed twice
            stream.flush()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            _be_the_server(listener.fileno(), alive, folder)
    os.close(alive)
    server._forkserver_address = address
    server._forkserver_alive_fd = ours
    server._forkserver_pid = pid
    return True


def _be_the_server(listener: int, alive: int, folder: str) -> NoReturn:
    """Fork what is asked for until nobody is left who could ask, with no end of this process's
    own."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # a worker that looked for garbage among imports would get them all copied
        forkserver.main(listener, alive, [])
    except SystemExit:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(code)


def threads() -> int | None:
    """The threads of this process, those of libraries too; None where the system does not tell."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else None


def for_cpu() -> bool:
    """Whether torch is a build for the CPU alone."""
    import torch

    return torch.version.cuda is None and torch.version.hip is None
