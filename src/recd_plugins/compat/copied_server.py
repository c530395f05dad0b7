"""A fork server that is a copy of the process whose workers it forks.

multiprocessing, as of Python 3.13, starts an interpreter for its server and has no public way to
start it otherwise: the private fields that are set here are what it keeps of the one it started.
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
    for_cpu,
    outlive_stops,
    start_quiet_tracker,
    threads,
)

__all__ = ["copy_as_fork_server"]


def copy_as_fork_server() -> bool:
    """Have this process's workers forked from a copy of it as it is now, if it can be copied;
    whether it was.

    A server that is an interpreter of its own takes seconds to import what is here already. A
    process can be copied while it has one thread, where torch is built for the CPU. One that does
    this before it loads or computes anything has workers that find what those of another server
    would.
    """
    server: Any = forkserver._forkserver
    asks_for_a_key = hasattr(server, "_forkserver_authkey")  # Python 3.14's, which it makes itself
    if asks_for_a_key or server._forkserver_pid is not None or threads() != 1 or not for_cpu():
        return False
    folder = folder_made_here()
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
    start_quiet_tracker()
    server._forkserver_address = address
    server._forkserver_alive_fd = ours
    server._forkserver_pid = pid
    return True


def _be_the_server(listener: int, alive: int, folder: str) -> NoReturn:
    """Fork what is asked for until nobody is left who could ask, with no end of this process's
    own."""
    code = 1
    try:
        outlive_stops()
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
