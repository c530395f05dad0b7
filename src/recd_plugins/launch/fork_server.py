"""The server that workers are forked from: it has imported what they need, and runs no thread."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.util import get_temp_dir

from recd_plugins.launch.left_sockets import SOCKETS

__all__ = ["fork_server"]

SAFE_PATH = "PYTHONSAFEPATH"
"""Python's variable by which an interpreter does not look for modules where it is started."""


def fork_server(*preload: str) -> ForkServerContext:
    """multiprocessing's context of the server, which runs when this returns and has imported the
    modules `preload`, if this process is the first to ask for it.

    No module that happens to lie in the current folder is imported by the server: multiprocessing
    starts it as `python -c`, which would look there first, for Python's own modules too. Workers
    look where the process does that asks for them. At its end the server removes the folder of its
    socket, for this process may have been killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["recd_plugins.launch.left_sockets", *preload])
    for_the_server = {SAFE_PATH: "1", SOCKETS: get_temp_dir()}
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
