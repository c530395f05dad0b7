"""Standard input, output and error, as all that a command calls takes for granted."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["UTF_8", "open_streams"]

UTF_8 = "Have the variable PYTHONUTF8 be 1, or LC_ALL a locale of UTF-8, as C.UTF-8."
"""What to do where a system's locale has an encoding that lacks what a command is to write."""


def open_streams() -> None:
    """From now on all three are there, those that were closed, as behind `>&-`, as nothing: else
    the next file that is opened is what libraries and ranks print to. What the encoding of the
    output lacks is printed as an escape."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which gets the lowest number that is free
            stream = os.fdopen(number, "w" if number else "r", closefd=False, encoding="utf-8")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
