"""The entry points of what is installed, read once for `sys.path` as it is.

To read them anew takes the files of every distribution, some ten milliseconds, and each plugin of a
registry is looked up.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

__all__ = ["changed_at", "installed_points"]


def installed_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group; none of them is imported."""
    return _read(group, tuple((folder, changed_at(folder)) for folder in sys.path))


@lru_cache(maxsize=32)
def _read(group: str, path: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def changed_at(folder: str) -> int:
    """The time when something was last added to a folder, or taken from it."""
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0
