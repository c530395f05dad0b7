"""A digest of a file's content."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["sha256_of"]


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file, read in parts."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
