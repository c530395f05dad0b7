"""The most memory that this process has held."""

from __future__ import annotations

from recd_plugins.launch.processes import own_memory

__all__ = ["peak_memory"]


def peak_memory() -> int:
    """Bytes since the process began its program, as Linux counts them.

    Not `ru_maxrss`: Linux hands that on from the process that started this one.
    """
    found = own_memory("VmHWM")
    assert found is not None
    return found
