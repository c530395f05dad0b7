"""The most memory that this process has held."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["peak_memory"]


def peak_memory() -> int:
    """Bytes since the process began its program, as Linux counts them.

    Not `ru_maxrss`: Linux hands that on from the process that started this one.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
