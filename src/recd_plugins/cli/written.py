"""Files that a command is to write: refused before its work where they cannot be."""

from __future__ import annotations

from pathlib import Path

from recd_plugins.errors import RegistryError
from recd_plugins.trainer.run_folder import check_makes_files

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
    check_makes_files(path, option)
