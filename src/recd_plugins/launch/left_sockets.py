"""The life and the end of a fork server: no signal that is for its ranks ends it, and at its end it
removes the folder of its socket, which a process that was killed leaves behind. What torch and
TorchRec log as they are imported, and in what is forked, is errors alone.

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
