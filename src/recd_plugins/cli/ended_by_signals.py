"""Commands that SIGTERM or SIGHUP ends, sent by a scheduler, `timeout` or a closing terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

__all__ = ["ended_by_signals"]

ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP end a command as Ctrl-C does: its temporary folders and incomplete
    files are removed first, since nobody would do it later. It then ends by the signal that came; a
    second signal of that kind ends it at once.

    A signal that is ignored, as under `nohup`, or that has another handler stays so.
    """
    came: list[int] = []
    process = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != process:  # one that was forked since keeps nothing
            os.kill(os.getpid(), number)
        came.append(number)
        raise KeyboardInterrupt

    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [number for number in ENDS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)
        if came:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            os.kill(process, came[0])
