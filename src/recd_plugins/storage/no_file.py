"""The kind of a path that is not a file: a reader would wait forever for some of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["no_file"]

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
HANDED_OVER = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""The beginnings of paths that a shell hands over, as with `<(...)`; they are read like files."""


def no_file(path: Path) -> str:
    """What a path is instead of a file, in words; an empty string for a file, or if nothing is
    there."""
    if str(path).startswith(HANDED_OVER):
        return ""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except OSError:
        return "a link that leads to itself" if _is_loop(path) else ""


def _is_loop(path: Path) -> bool:
    return os.path.islink(os.path.realpath(path))
