"""The error for a table that is not there: it says what lies nearest to the path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from recd_plugins.data.files.paths import is_glob
from recd_plugins.errors import DataError, listed
from recd_plugins.storage.uri import Location, Uri

__all__ = ["NoSuchTable", "named_by"]


class NoSuchTable(DataError):
    """There is nothing at the path of a table."""

    def __init__(self, path: Location, option: str = "", registry: Path | None = None) -> None:
        """`option` names the table, in the file `registry`, beside which the table may lie."""
        self.path, self.option = path, option
        super().__init__(f"{option}: {self._what(registry)}" if option else self._what(registry))

    def _what(self, registry: Path | None) -> str:
        path, glob = self.path, is_glob(self.path)
        what = "no file fits this glob" if glob else "there is no such table"
        if isinstance(path, Uri):
            return f"{path}: {what}. Check the path."
        if path.is_symlink():
            return f"{path}: is a link to {os.readlink(path)}, where nothing is. Check the link."
        if registry is not None and not path.is_absolute() and any(registry.parent.glob(str(path))):
            beside = registry.parent / path
            return (
                f"{path}: {what} in {Path.cwd()}, where paths of tables start; it "
                f"lies beside {registry}. Write `{self.option.rpartition('.')[2]}: {beside}`, or "
                f"start from {registry.parent.absolute()}."
            )
        start = "" if path.is_absolute() else f" It is relative to {Path.cwd()}, where you are."
        return f"{path}: {what}. Check the path.{start}{'' if glob else _neighbours(path)}"


@contextmanager
def named_by(option: str) -> Iterator[None]:
    """Inside it, the error for a missing table says which option names the table."""
    try:
        yield
    except NoSuchTable as error:
        raise NoSuchTable(error.path, error.option or option) from None


def _neighbours(path: Path) -> str:
    """What lies where the path stops being right, the nearest names first."""
    folder = next((one for one in path.parents if one.is_dir()), None)
    if folder is None:
        return ""
    wanted = path.relative_to(folder).parts[0]
    try:
        there = [one for one in folder.iterdir() if not one.name.startswith((".", "_"))]
    except OSError:
        return ""
    names = sorted(one.name for one in there if one.is_dir() or one.suffix == ".parquet")
    near = get_close_matches(wanted, names, n=4, cutoff=0.5)
    others = listed([*near, *(one for one in names if one not in near)])
    held = f"; it holds {others}" if others else ", and no other folder or Parquet file"
    return f" {folder.absolute()} has no {wanted!r}{held}."
