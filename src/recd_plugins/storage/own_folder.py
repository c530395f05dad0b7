"""A folder of this user's in the temporary one, for what all processes of a machine share."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

__all__ = ["own_folder"]


def own_folder(name: str) -> Path | None:
    """The folder, which lets in this user alone; None where there can be none, or another user has
    made it."""
    folder = Path(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if ours and not found.st_mode & 0o077 else None
