"""A wall clock that jumps: it sets what `time.time` returns in all processes that were forked with
this.

Importing it changes nothing unless the environment names a file; that file has the offset.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

__all__ = ["OFFSET_FILE", "begin", "jump"]

OFFSET_FILE = "RECD_BENCH_CLOCK"
_SECONDS = struct.Struct("<d")
_real = time.time


def begin(file: Path) -> None:
    """From now on, the clock jumps in this process and in those that it starts."""
    file.write_bytes(_SECONDS.pack(0.0))
    os.environ[OFFSET_FILE] = str(file)
    _follow(file)


def jump(file: Path, seconds: float) -> None:
    """From now on, the clocks of all processes are off by this."""
    with file.open("r+b") as opened:
        opened.write(_SECONDS.pack(seconds))


def _follow(file: Path) -> None:
    with file.open("r+b") as opened:
        offset = mmap.mmap(opened.fileno(), _SECONDS.size)
    time.time = lambda: _real() + float(_SECONDS.unpack(offset[: _SECONDS.size])[0])


if OFFSET_FILE in os.environ:
    _follow(Path(os.environ[OFFSET_FILE]))
