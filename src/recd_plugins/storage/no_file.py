"""The kind of a path that is no file: a reader of files would wait for some of them without end."""

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
"""What a shell hands over, as `<(...)` does, is read as a file is."""


def no_file(path: Path) -> str:
    """The kind of thing that it is instead of a file, in words; nothing for a file, or where
    nothing is there."""
    if str(path).startswith(HANDED_OVER):
        return ""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except OSError:
        return "a link that leads to itself" if _is_loop(path) else ""


def _is_loop(path: Path) -> bool:
    return os.path.islink(os.path.realpath(path))
