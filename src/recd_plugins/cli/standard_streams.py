"""Standard input, output and error, which all code that a command calls takes for granted."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["UTF_8", "open_streams"]

UTF_8 = "Have the variable PYTHONUTF8 be 1, or LC_ALL a locale of UTF-8, as C.UTF-8."
"""What to do where a system's locale has an encoding that lacks what a command is to write."""


def open_streams() -> None:
    """Open all three; those that were closed, as by `>&-`, lead nowhere. Otherwise libraries and
    ranks would print into the next file that is opened. Characters that the output's encoding
    lacks are printed as escapes."""
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
