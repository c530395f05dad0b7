"""The sealed files of a log: each writer writes a list of its files when it closes.

    sealed/<writer>.json
        {"files": {"shard-00007/<writer>.log": [bytes, blocks, messages, digest]}, "digest": ...}

Writers do not share files here either. A file on a list must be there as it was sealed; a file on
no list belongs to a writer that still writes, or was killed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from recd_dedup.log.digested import digested, undigested
from recd_dedup.log.shard_file import Damaged, Sealed, held_in, name_of, report_damage, sync_folder
from recd_plugins.api import so_many
from recd_plugins.api.data import Location

__all__ = ["SealedFiles", "Unsealed", "write_sealed"]


class Unsealed(NamedTuple):
    """How much is read of a file that its writer has not sealed."""

    blocks: int
    """The number of whole blocks."""
    messages: int
    """Their messages."""
    tail: int
    """Bytes after these that cannot be read: of a write that was cut off, or is under way."""

    def __str__(self) -> str:
        return (
            f"its writer has not sealed it: {so_many(self.blocks, 'block')} with "
            f"{so_many(self.messages, 'message')} can be read, but not the {self.tail:,} bytes "
            "after them"
        )


class SealedFiles:
    """The sealed files of a log's folder, by the writers that have closed."""

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._lists: dict[str, dict[str, Sealed]] = {}
        """The sealed files by writer's list; a list never changes."""

    def of(self, shard: str, damaged: Damaged) -> dict[Location, Sealed]:
        """The sealed files of a shard's folder; raises `DataError` if one is gone or cut short."""
        found = {}
        for listed in self._read(damaged).values():
            for name, sealed in listed.items():
                path = self._folder / name
                if path.parent.name == shard and _is_as_sealed(path, sealed, damaged):
                    found[path] = sealed
        return found

    def writers(self, damaged: Damaged) -> dict[str, dict[str, int]]:
        """The writers that have closed: the sizes of their files at that time, by name."""
        return {
            file.removesuffix(".json"): {name: sealed.bytes for name, sealed in listed.items()}
            for file, listed in self._read(damaged).items()
        }

    def _read(self, damaged: Damaged) -> dict[str, dict[str, Sealed]]:
        lists: list[Location] = [*held_in(self._folder / "sealed", "*.json")]
        for file in sorted(lists, key=str):
            if file.name not in self._lists:
                self._lists[file.name] = _listed(file, damaged)
        return self._lists


def write_sealed(folder: Path, writer: str, files: Mapping[Path, Sealed], *, sync: bool) -> None:
    """Write a writer's list, whole or not at all."""
    listed = {name_of(path): list(one) for path, one in sorted(files.items())}
    target = folder / "sealed" / f"{writer}.json"
    target.parent.mkdir(exist_ok=True)
    draft = target.with_suffix(".part")
    with draft.open("w", encoding="utf-8") as opened:
        opened.write(digested("files", listed))
        opened.flush()
        if sync:
            os.fsync(opened.fileno())
    draft.rename(target)
    if sync:
        sync_folder(target.parent)


def _listed(file: Location, damaged: Damaged) -> dict[str, Sealed]:
    try:
        files = undigested("files", file.read_bytes())
        return {name: Sealed(*one) for name, one in files.items()}
    except (OSError, ValueError) as error:
        report_damage(f"{file}: this list of sealed files is damaged ({error})", damaged)
    return {}


def _is_as_sealed(path: Location, sealed: Sealed, damaged: Damaged) -> bool:
    there = f"it was sealed with {so_many(sealed.messages, 'message')} in {sealed.bytes:,} bytes"
    if not path.exists():
        report_damage(f"{path}: is not there; {there}", damaged)
        return False
    # If bytes were added, reading the file reports that, with the byte where they begin.
    if (size := path.stat().st_size) < sealed.bytes:
        report_damage(f"{path}: is cut short to {size:,} bytes; {there}", damaged)
        return False
    return True
