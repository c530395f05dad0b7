"""The server that workers are forked from: it has imported what they need, and runs no thread."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

__all__ = ["fork_server"]

SAFE_PATH = "PYTHONSAFEPATH"
"""Python's variable by which an interpreter does not look for modules where it is started."""


def fork_server(*preload: str) -> ForkServerContext:
    """multiprocessing's context of the server, which runs when this returns and has imported the
    modules `preload`, if this process is the first to ask for it.

    No module that happens to lie in the current folder is imported by the server: multiprocessing
    starts it as `python -c`, which would look there first, for Python's own modules too. Workers
    look where the process does that asks for them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
    return context
