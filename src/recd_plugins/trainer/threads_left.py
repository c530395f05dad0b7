"""Threads and processes that keep running when a rank is done: Python waits for each that is not a
daemon, perhaps for ever, and says nothing."""

from __future__ import annotations

import threading
import time
from multiprocessing import active_children

from recd_plugins.notices import Notices, RunsOn

__all__ = ["name_threads_left"]

PATIENCE = 10.0
"""Seconds that threads get to finish: pools end theirs when a process ends."""


def name_threads_left(rank: int) -> None:
    """Call this when the rank is done: if it still runs after a while, a notice names the threads
    and the processes that it waits for."""
    threading.Thread(target=_name_later, args=(rank,), daemon=True).start()


def _name_later(rank: int) -> None:
    time.sleep(PATIENCE)
    main = threading.main_thread()
    threads = [one for one in threading.enumerate() if not one.daemon and one is not main]
    left = [f"thread {one.name!r}" for one in threads]
    left += [f"process {one.name!r} ({one.pid})" for one in active_children() if not one.daemon]
    Notices().give(
        (
            RunsOn(
                what=f"{one} of rank {rank}",
                why=f"all is trained and written, and Python waits for a {one.split()[0]} that is "
                "no daemon",
                cure="Have whoever started it, as a plugin on import, end it, or start it with "
                "`daemon=True`.",
            )
            for one in left
        ),
        0,
    )
