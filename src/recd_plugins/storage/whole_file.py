"""Files that are there whole, or as they were before."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recd_plugins.storage.uri import Location, Uri, location_of

__all__ = ["FULL", "of_path", "whole_file", "write_whole"]

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a system with no room for a file, or with none left that this user may take."""


@contextmanager
def of_path(path: Path) -> Iterator[None]:
    """Inside, a disk that is full is this path's: it says so as bytes are written, when nobody
    names the file any more."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A path to write to, which becomes `path` once it is whole, and on the disk.

    What was there before is replaced, or, where that is a link, what it leads to; where writing
    fails, it stays as it was, and nothing else is left. If several processes write it at a time,
    the file of the last one stays.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    # A picture's suffix says what it is.
    # Processes of two containers that share a folder may have one number.
    part = path.with_name(f"{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        with of_path(path):
            yield part
            # A disk may tell as late as this that it is full.
            written = os.open(part, os.O_RDONLY)
            try:
                os.fsync(written)
            finally:
                os.close(written)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: str | Location, text: str) -> None:
    """Write a text file that is there whole, or as it was before."""
    path = location_of(path)
    if isinstance(path, Uri):
        path.write_text(text)  # stores have it so
        return
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")
