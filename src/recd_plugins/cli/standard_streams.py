"""Standard input, output and error, which all code that a command calls takes for granted."""

from __future__ import annotations

import errno
import io
import os
import signal
import stat
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["UTF_8", "open_streams", "stop_when_unread"]

UTF_8 = "Have the variable PYTHONUTF8 be 1, or LC_ALL a locale of UTF-8, as C.UTF-8."
"""What to do where a system's locale has an encoding that lacks what a command is to write."""


def open_streams() -> None:
    """Open all three; those that were closed, as by `>&-`, lead nowhere. Otherwise libraries and
    ranks would print into the next file that is opened. Characters that the output's encoding
    lacks are printed as escapes. What is printed to a terminal that has closed is lost, and is no
    error: a process that no SIGHUP ended goes on."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which gets the lowest number that is free
            stream = os.fdopen(number, "w" if number else "r", closefd=False, encoding="utf-8")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        else:
            if number and stat.S_ISCHR(os.fstat(number).st_mode):
                _replace(name, number, errno.EIO, when_lost=lambda: None)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def stop_when_unread() -> None:
    """From now on this process is sent SIGTERM once nobody reads its standard output any more, as
    behind `| head`, or behind `| tee` after a Ctrl-C to both: a rank then stops after its step and
    saves a checkpoint. What it prints after that is lost."""
    if stat.S_ISFIFO(os.fstat(1).st_mode):
        _replace("stdout", 1, errno.EPIPE, when_lost=lambda: signal.raise_signal(signal.SIGTERM))


def _replace(name: str, number: int, lost: int, when_lost: Callable[[], object]) -> None:
    """Have a stream of Python's lead to a `_StreamUntilLost`, if the process began with the stream
    that is there."""
    before = getattr(sys, name)
    if before is not getattr(sys, f"__{name}__") or not isinstance(before, io.TextIOWrapper):
        return
    before.flush()
    stream = io.TextIOWrapper(
        io.BufferedWriter(_StreamUntilLost(number, lost, when_lost)),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=True,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


class _StreamUntilLost(io.FileIO):
    """An open file to which bytes are written until that gives the error `lost`: there is no reader
    any more. What is written from then on is dropped."""

    def __init__(self, number: int, lost: int, when_lost: Callable[[], object]) -> None:
        super().__init__(number, "w", closefd=False)
        self._lost, self._when_lost, self._is_lost = lost, when_lost, False

    def write(self, data: Any) -> int:
        if not self._is_lost:
            try:
                return super().write(data) or 0
            except OSError as error:
                if error.errno != self._lost:
                    raise
            self._is_lost = True
            self._when_lost()
        return memoryview(data).nbytes
