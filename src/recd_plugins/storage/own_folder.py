"""A folder of this user in the temporary folder, for what all processes of a machine share."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

__all__ = ["own_folder"]


def own_folder(name: str) -> Path | None:
    """The folder, which only this user can access; None if it cannot be made, or another user made
    it."""
    folder = Path(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if ours and not found.st_mode & 0o077 else None
