"""Files and folders that a command is to write: refused before its work if they cannot be
written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from recd_plugins.errors import DataError, RegistryError
from recd_plugins.storage.no_file import no_file
from recd_plugins.storage.uri import Location, Uri
from recd_plugins.trainer.run_folder import check_makes_files

__all__ = [
    "DPI",
    "PICTURES",
    "YAML",
    "check_apart",
    "check_makable",
    "check_new_file",
    "check_not_read",
    "check_writable",
]

PICTURES = (".png", ".pdf", ".svg")
"""How a picture's file may end."""
DPI = 150
"""The pixels of an inch of a picture."""
YAML = (".yaml", ".yml")
"""How a file of YAML may end."""


def check_writable(path: Location | None, option: str, suffixes: tuple[str, ...] = ()) -> None:
    """`RegistryError` if no such file can be made; an existing file may be replaced."""
    if path is None:
        return
    if isinstance(path, Uri):
        if suffixes and path.suffix not in suffixes:
            raise RegistryError(f"{option}: {path} must end in one of {', '.join(suffixes)}.")
        return
    if path.is_dir():
        raise RegistryError(f"{option}: {path} is a folder. Name a file.")
    if what := no_file(path):
        raise RegistryError(
            f"{option}: {path} is {what}, and the output can only replace a file. Name another "
            "path."
        )
    if suffixes and path.suffix not in suffixes:
        raise RegistryError(f"{option}: {path} must end in one of {', '.join(suffixes)}.")
    check_makes_files(path, option)


def check_new_file(path: Path, option: str, *, replaces: bool) -> None:
    """`DataError` if a file is there, unless the output replaces it, as `--force` asks for."""
    if path.exists() and not replaces:
        raise DataError(f"{path}: is there already. Name another with {option}, or give --force.")


def check_apart(files: Mapping[str, Location | None]) -> None:
    """`RegistryError` where two options name one file to write."""
    found: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        place = os.path.realpath(path) if isinstance(path, Path) else str(path)
        if other := found.get(place):
            raise RegistryError(
                f"{option}: {path} is the file of {other}, too, and the second output would "
                "replace the first. Name two files."
            )
        found[place] = option


def check_not_read(path: Location | None, option: str, read: Iterable[Location]) -> None:
    """`RegistryError` if a file that is to be written is one that the command reads."""
    if path is None:
        return
    for one in read:
        here = isinstance(path, Path) and isinstance(one, Path) and path.exists()
        if one == path or (here and os.path.samefile(str(path), str(one))):
            raise RegistryError(
                f"{option}: {path} is read here, and the output would replace it. Name another "
                "file."
            )


def check_makable(folder: Location, option: str) -> None:
    """`RegistryError` where no such folder can be made."""
    if isinstance(folder, Uri):
        return
    if not folder.name:
        raise RegistryError(f"{option}: {folder} is there already. Name a new folder.")
    check_makes_files(folder, option)
