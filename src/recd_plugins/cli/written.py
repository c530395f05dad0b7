"""Files that a command is to write: refused before its work where they cannot be."""

from __future__ import annotations

import tempfile
from pathlib import Path

from recd_plugins.errors import RegistryError

__all__ = ["check_writable"]


def check_writable(path: Path | None, option: str, suffixes: tuple[str, ...] = ()) -> None:
    """`RegistryError` where no such file can be made; what is there already may be replaced."""
    if path is None:
        return
    if path.is_dir():
        raise RegistryError(f"{option}: {path} is a folder. Name a file.")
    if path.exists() and not path.is_file():
        raise RegistryError(
            f"{option}: {path} is no regular file (a device, a pipe or a socket), and what is "
            "written replaces a file. Name another."
        )
    if suffixes and path.suffix not in suffixes:
        raise RegistryError(f"{option}: {path} must end in one of {', '.join(suffixes)}.")
    folder = next(one for one in path.resolve().parents if one.exists())
    try:
        # Asking for permission is not enough: root has it where nothing can be written.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RegistryError(
            f"{option}: {path} cannot be written, for {folder} takes no files ({error.strerror}). "
            "Name another."
        ) from None
