"""The files that options name. If one has changed since tables were made from it, the tables may
have other rows than they would have now."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recd_plugins.notices import Outdated
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.outdated import first_outdated
from recd_plugins.registry.registry import Registry
from recd_plugins.storage.file_digest import sha256_of
from recd_plugins.storage.whole_file import write_whole

__all__ = [
    "NOTE",
    "FileStat",
    "changed_file",
    "files_of_steps",
    "leave_out_written_files",
    "note_files",
    "outdated_by_files",
    "paths_of",
    "stats_of_files",
]

NOTE = "files.json"
"""The file beside the tables of a step: size, time and SHA-256 of each file that it read."""


def paths_of(choice: Choice) -> list[Path]:
    """The files and folders that options of a choice name."""
    return [path for _, path in _paths(choice.config, "")]


def files_of_steps(registry: Registry) -> dict[str, Path]:
    """The files that transforms of `preprocess` read, by the option that names each."""
    found = [
        (f"{choice.where}{option}", path)
        for choice in registry.chosen("preprocess")
        for option, path in _paths(choice.config, "")
    ]
    return {option: path for option, path in found if path.is_file()}


def _paths(value: Any, option: str) -> Iterator[tuple[str, Path]]:
    """The paths within the value of an option, each with the option."""
    if isinstance(value, Path):
        yield option, value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _paths(getattr(value, field.name), f"{option}.{field.name}")
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _paths(one, f"{option}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, one in enumerate(value):
            yield from _paths(one, f"{option}[{number}]")


class FileStat(NamedTuple):
    """The size of a file, and when it was changed last."""

    size: int
    mtime_ns: int


def stats_of_files(choice: Choice) -> dict[Path, FileStat]:
    """The existing files that options of a choice name."""
    found = {}
    for path in paths_of(choice):
        if path.is_file():
            stat = path.stat()
            found[path] = FileStat(stat.st_size, stat.st_mtime_ns)
    return found


def note_files(folder: Path, files: Mapping[Path, FileStat]) -> None:
    """Record beside tables that are about to be written the contents of their step's files."""
    with contextlib.suppress(OSError):  # tables can be written all the same
        noted = {str(path): [*stat, sha256_of(path)] for path, stat in files.items()}
        if noted:
            write_whole(folder / NOTE, json.dumps(noted, indent=1) + "\n")


def leave_out_written_files(
    folder: Path, before: Mapping[Path, FileStat], after: Mapping[Path, FileStat]
) -> None:
    """Remove from that record the files that have changed between `before` and `after` the tables
    were written: the step writes these, and does not read them."""
    written = {str(path) for path, stat in before.items() if after.get(path) != stat}
    with contextlib.suppress(OSError, ValueError):
        noted = json.loads((folder / NOTE).read_text()) if written else {}
        if written & noted.keys():
            left = {path: one for path, one in noted.items() if path not in written}
            write_whole(folder / NOTE, json.dumps(left, indent=1) + "\n")


def outdated_by_files(choices: Sequence[Choice], folders: Sequence[Path]) -> Iterator[Outdated]:
    """A notice of the first of the choices of which a file has changed since its tables were made,
    if any."""

    def changed(choice: Choice, folder: Path) -> str | None:
        file = changed_file(choice, folder)
        return None if file is None else f"{file} has changed since {folder} was written"

    return first_outdated(choices, folders, NOTE, changed)


def changed_file(choice: Choice, folder: Path) -> Path | None:
    """The first file of a choice that differs from the record; None if none does."""
    try:
        noted = json.loads((folder / NOTE).read_text())
        for path, stat in stats_of_files(choice).items():
            size, mtime_ns, digest = noted.get(str(path), (*stat, ""))
            if stat != (size, mtime_ns) and (stat.size != size or sha256_of(path) != digest):
                return path
    except (OSError, ValueError, TypeError, AttributeError):
        pass  # there is no record
    return None
