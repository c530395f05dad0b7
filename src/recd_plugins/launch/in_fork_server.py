"""What a fork server does before all else. The signals that are for its ranks do not end it. Torch
and TorchRec log only errors, in it and in what it forks. At its end it removes the folder of its
socket, which a process that was killed leaves behind, with what its ranks printed.

The server imports this module first, and nobody else does. It runs until the process that started
it and all that were forked for that process are gone, so nobody uses the folder any more.
"""

from __future__ import annotations

import atexit
import os
import shutil

from recd_plugins.launch.fork_server import SOCKETS, keep_quiet_of_threads, outlive_stops
from recd_plugins.notices import hide_logs

__all__: list[str] = []

keep_quiet_of_threads()
hide_logs()
outlive_stops()
if folder := os.environ.pop(SOCKETS, ""):
    # A process that ends by itself has removed it already.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
