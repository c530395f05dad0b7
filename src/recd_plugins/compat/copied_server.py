"""A fork server that is a copy of the process whose workers it forks.

multiprocessing, as of Python 3.13, starts an interpreter for its server and has no public way to
start it differently. The private fields set here are those in which it keeps the server it started.
"""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
import tempfile
import traceback
from multiprocessing import forkserver
from multiprocessing.util import get_temp_dir
from typing import Any, NoReturn

from recd_plugins.launch.fork_server import (
    folder_made_here,
    outlive_stops,
    start_quiet_tracker,
    thread_count,
    torch_is_for_cpu,
)

__all__ = ["copy_as_fork_server"]


def copy_as_fork_server() -> bool:
    """Have this process's workers forked from a copy of it as it is now, if it can be copied.
    Returns whether it was copied.

    A server with an interpreter of its own takes seconds to import what is already here. A process
    can be copied while it has one thread, where torch is built for the CPU. If a process does this
    before it loads or computes anything, its workers find the same as those of another server.
    """
    server: Any = forkserver._forkserver
    asks_for_a_key = hasattr(server, "_forkserver_authkey")  # Python 3.14's, which it makes itself
    is_there = server._forkserver_pid is not None
    if asks_for_a_key or is_there or thread_count() != 1 or not torch_is_for_cpu():
        return False
    folder = folder_made_here()
    with socket.socket(socket.AF_UNIX) as listener:
        address = tempfile.mktemp(prefix="listener-", dir=get_temp_dir())
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen()
        alive, ours = os.pipe()
        for stream in (sys.stdout, sys.stderr):  # otherwise buffered text would be printed twice
            stream.flush()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            _be_the_server(listener.fileno(), alive, folder)
    os.close(alive)
    start_quiet_tracker()
    server._forkserver_address = address
    server._forkserver_alive_fd = ours
    server._forkserver_pid = pid
    return True


def _be_the_server(listener: int, alive: int, folder: str) -> NoReturn:
    """Fork the workers that are asked for until nobody is left to ask. The process then exits
    without the exit handlers that it was copied with."""
    code = 1
    try:
        outlive_stops()
        gc.freeze()  # a worker's garbage collection would copy the memory of all imports
        forkserver.main(listener, alive, [])
    except SystemExit:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(code)
