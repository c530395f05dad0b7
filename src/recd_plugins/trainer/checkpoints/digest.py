"""The digest of a checkpoint: what each of its files was when it was written, and what is damaged.

    digest.json    {"files": {name: [bytes, SHA-256]}, "digest": the SHA-256 of `files`}

It is written last, and holds every file of the folder but itself, so no byte of a checkpoint can
change and still be loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from recd_plugins.errors import DataError

__all__ = ["FileDigest", "check_digest", "damaged", "digest_of", "read_digest", "write_digest"]

NAME = "digest.json"


class FileDigest(NamedTuple):
    """What a file was when it was written."""

    bytes: int
    sha256: str


def digest_of(file: Path) -> FileDigest:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
        return FileDigest(opened.tell(), found)


def write_digest(folder: Path, files: Mapping[str, FileDigest]) -> None:
    """Write digest.json, for files by their names."""
    listed = {name: list(files[name]) for name in sorted(files)}
    with (folder / NAME).open("w") as file:
        json.dump({"files": listed, "digest": _digest(listed)}, file)
        file.flush()
        os.fsync(file.fileno())


def read_digest(folder: Path) -> dict[str, FileDigest]:
    """The files of a checkpoint; `DataError` where its digest.json is not what was written."""
    file = folder / NAME
    try:
        held = json.loads(file.read_text())
        if held["digest"] != _digest(held["files"]):
            raise damaged(file, "its digest is not that of the files it names")
        return {name: FileDigest(*one) for name, one in held["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise damaged(file, str(error)) from error


def check_digest(folder: Path, part: int = 0, parts: int = 1) -> None:
    """`DataError` names the first file that is not what was written; of `parts` ranks, each reads
    a part."""
    files = read_digest(folder)
    by_size = sorted(files, key=lambda name: files[name].bytes)
    for name in by_size[part::parts]:
        try:
            found = digest_of(folder / name)
        except OSError as error:
            raise damaged(folder / name, str(error)) from error
        if found.bytes != files[name].bytes:
            why = f"it has {found.bytes:,} bytes, of {files[name].bytes:,} that were written"
            raise damaged(folder / name, why)
        if found != files[name]:
            raise damaged(folder / name, "its bytes are not those that were written")


def damaged(file: Path, why: str) -> DataError:
    return DataError(
        f"{file}: cannot be read ({why}). The checkpoint is damaged: remove its folder, and "
        "--resume takes the one before, as it does by itself with train.on_damaged=go_back."
    )


def _digest(files: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
