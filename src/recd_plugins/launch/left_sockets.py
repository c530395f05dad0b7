"""The end of a fork server: it removes the folder of its socket, which a process that was killed
leaves behind.

The server imports this module first (`fork_server`). It runs until the process that started it and
all that were forked for that process are gone, so nobody uses the folder any more.
"""

from __future__ import annotations

import atexit
import os
import shutil

__all__ = ["SOCKETS"]

SOCKETS = "RECD_FORK_SERVER_SOCKETS"
"""The variable that names the folder to a server; those that it forks do not see it."""

if folder := os.environ.pop(SOCKETS, ""):
    # A process that ends by itself has removed it already.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
