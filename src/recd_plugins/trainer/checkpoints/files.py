"""Reads the files of a checkpoint, and checks each against its digest from when it was written.

    digest.json    {"files": {name: [bytes, SHA-256]}, "digest": the SHA-256 of `files`}

It is written last, and lists every file of the folder but itself, so a checkpoint of which any byte
has changed is not loaded.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from recd_plugins.errors import DataError, so_many
from recd_plugins.storage.file_digest import sha256_of
from recd_plugins.storage.json_mappings import from_items
from recd_plugins.trainer.checkpoints.step_folders import checkpoints_in, step_of
from recd_plugins.trainer.checkpoints.version_before import VERSION

__all__ = [
    "FileDigest",
    "UndigestedError",
    "check_whole",
    "checkpoint_of",
    "damaged_file",
    "digest_of",
    "read_digest",
    "read_job",
    "read_rank",
    "refused",
    "write_digest",
    "write_json",
]

NAME = "digest.json"
REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The errors of a system that refuses to read a file, which say nothing about its content."""


class UndigestedError(DataError):
    """A checkpoint has no digest.json, but may not be damaged: older versions wrote no
    digest.json."""


class FileDigest(NamedTuple):
    """The size and the hash of a file when it was written."""

    bytes: int
    sha256: str


def digest_of(file: Path) -> FileDigest:
    return FileDigest(file.stat().st_size, sha256_of(file))


def write_digest(folder: Path, files: Mapping[str, FileDigest]) -> None:
    """Write digest.json, for files by their names."""
    listed = {name: list(files[name]) for name in sorted(files)}
    write_json(folder / NAME, {"files": listed, "digest": _digest(listed)})


def read_digest(folder: Path) -> dict[str, FileDigest]:
    """The digests of a checkpoint's files; `DataError` if its digest.json is not what was written,
    and `UndigestedError` if it may never have had one."""
    file = folder / NAME
    try:
        held = json.loads(file.read_text())
        if held["digest"] != _digest(held["files"]):
            raise damaged_file(file, "its digest is not that of the files it names")
        return {name: FileDigest(*one) for name, one in held["files"].items()}
    except FileNotFoundError as error:
        # Every version that writes its name to job.json also writes a digest.json.
        if VERSION in _read(folder / "job.json", {}):
            raise damaged_file(file, str(error)) from error
        raise UndigestedError(
            f"{folder}: has no {NAME}, which shows that its files are whole: an older version of "
            "recd-plugins wrote the checkpoint, or the file was removed. Go on with that version, "
            "or restore the file."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, DataError) or refused(error):
            raise
        raise damaged_file(file, str(error)) from error


def _check_digest(folder: Path, part: int, parts: int) -> None:
    """`DataError` names the first file that is not what was written; each of `parts` ranks reads
    a part of the files."""
    files = read_digest(folder)
    by_size = sorted(files, key=lambda name: files[name].bytes)
    for name in by_size[part::parts]:
        try:
            found = digest_of(folder / name)
        except OSError as error:
            if refused(error):
                raise
            raise damaged_file(folder / name, str(error)) from error
        if found.bytes != files[name].bytes:
            why = f"it has {found.bytes:,} bytes, of {files[name].bytes:,} that were written"
            raise damaged_file(folder / name, why)
        if found != files[name]:
            raise damaged_file(folder / name, "its bytes are not those that were written")


def refused(error: Exception) -> bool:
    """Whether the system does not let this process read a file, which may not be damaged."""
    return isinstance(error, OSError) and error.errno in REFUSALS


def damaged_file(file: Path, why: str) -> DataError:
    """The error that names a damaged file, and what to do: that depends on whether the run has a
    checkpoint before this one."""
    step = step_of(file.parent)
    if any(step_of(one) < step for one in checkpoints_in(file.parent.parent)):
        cure = (
            "remove its folder, and the one before is taken; `recd train --resume "
            "train.on_damaged=go_back` does so by itself"
        )
    else:
        cure = "none is there before it, so restore the file from a copy, or train anew"
    return DataError(f"{file}: cannot be read ({why}). The checkpoint is damaged: {cure}.")


def _digest(files: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file of a checkpoint; it is on the disk when this returns."""
    with path.open("w") as file:
        file.write(json.dumps(value))
        file.flush()
        os.fsync(file.fileno())


def checkpoint_of(run: Path) -> Path:
    """The latest checkpoint in a run's folder, or `run` itself if it is a checkpoint."""
    if (run / "job.json").exists():
        return run
    found = checkpoints_in(run / "checkpoints")
    if not found:
        raise DataError(
            f"{run}: holds no checkpoint. Name a run's folder (train.run), or one of its "
            "checkpoints/step-... folders."
        )
    return found[-1]


def read_job(path: Path) -> dict[str, Any]:
    """A checkpoint's job.json, with `step`, `world_size` and `registry`."""
    file = path / "job.json"
    saved = _read(file, {"step": int, "world_size": int, "registry": dict})
    if saved["step"] < 0 or saved["world_size"] < 1:
        raise damaged_file(file, f"step {saved['step']} of {so_many(saved['world_size'], 'rank')}")
    for name, part in (
        ("registry.train", saved["registry"].get("train", {})),
        ("optimizers", saved.get("optimizers", {})),
    ):
        if not isinstance(part, dict):
            raise damaged_file(file, f"{name} is no mapping")
    return saved


def read_rank(path: Path, rank: int) -> dict[str, Any]:
    """A checkpoint's rank-N.json, with `loader`; also with `random`, unless `reshard` added the
    rank."""
    return _read(path / f"rank-{rank}.json", {"loader": dict})


def _read(file: Path, fields: Mapping[str, type]) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(), object_hook=from_items)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        if refused(error):
            raise
        raise damaged_file(file, str(error)) from error
    if not isinstance(value, dict):
        raise damaged_file(file, "it holds no mapping")
    for name, kind in fields.items():
        if type(value.get(name)) is not kind:
            raise damaged_file(file, f"its {name!r} is missing, or no {kind.__name__}")
    return value


def check_whole(path: Path, rank: int = 0, world_size: int = 1) -> None:
    """`DataError` if a checkpoint is not what was written, or has the name of another step; each of
    several ranks reads a part of the files."""
    _check_digest(path, rank, world_size)
    step = read_job(path)["step"]
    if step_of(path) not in (-1, step):
        raise damaged_file(path / "job.json", f"it is of step {step}")
