"""The entry points and the packages of what is installed, read once for `sys.path` as it is.

To read entry points anew takes the files of every distribution, some ten milliseconds, and each
plugin of a registry is looked up.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points

__all__ = ["installed_points", "owners"]


def installed_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group; none of them is imported."""
    return _read(group, tuple((folder, _changed_at(folder)) for folder in sys.path))


@lru_cache(maxsize=32)
def _read(group: str, path: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def owners(folder: str) -> Mapping[str, Distribution]:
    """The distribution of each package that is installed in a folder."""
    return _owners(folder, _changed_at(folder))


@lru_cache(maxsize=256)
def _owners(folder: str, since: int) -> Mapping[str, Distribution]:
    found: dict[str, Distribution] = {}
    for one in distributions(path=[folder]):
        packages = (one.read_text("top_level.txt") or "").split() or [
            inspect.getmodulename(file.parts[0]) or file.parts[0] for file in one.files or ()
        ]
        for package in packages:
            found.setdefault(package, one)
    return found


def _changed_at(folder: str) -> int:
    """The time when something was last added to a folder, or taken from it."""
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0
