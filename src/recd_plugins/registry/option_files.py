"""The files that options name, by what they held as tables were made of them: where one holds
something else since, the tables may have other rows than they would be written with now."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from recd_plugins.notices import Outdated
from recd_plugins.registry.choices import Choice
from recd_plugins.registry.program import paths_of
from recd_plugins.storage.whole_file import write_whole

__all__ = ["FileStat", "changed_files", "note_files", "stats_of_files"]

NOTE = "files.json"
"""The file beside the tables of a step: size, time and SHA-256 of each file that it read."""


class FileStat(NamedTuple):
    """The size of a file, and when it was changed last."""

    size: int
    mtime_ns: int


def stats_of_files(choice: Choice) -> dict[Path, FileStat]:
    """The files that options of a choice name, and that are there."""
    found = {}
    for path in paths_of(choice):
        if path.is_file():
            stat = path.stat()
            found[path] = FileStat(stat.st_size, stat.st_mtime_ns)
    return found


def note_files(
    choices: Sequence[Choice], folders: Sequence[Path], before: Sequence[Mapping[Path, FileStat]]
) -> None:
    """Keep beside tables that were written just now what the files of their steps hold; a file that
    was another one `before` they were written is written by a step, and not read."""
    for choice, folder, known in zip(choices, folders, before, strict=True):
        with contextlib.suppress(OSError):  # tables are there all the same
            noted = {
                str(path): [*stat, _digest_of(path)]
                for path, stat in stats_of_files(choice).items()
                if known.get(path) == stat
            }
            if noted:
                write_whole(folder / NOTE, json.dumps(noted, indent=1) + "\n")


def changed_files(choices: Sequence[Choice], folders: Sequence[Path]) -> Iterator[Outdated]:
    """The first of the choices of whose files one holds something else than its tables were made
    of, if any; all tables behind it were made of these."""
    for at, (choice, folder) in enumerate(zip(choices, folders, strict=True)):
        if (file := _changed(choice, folder)) is None:
            continue
        behind = " ".join(str(one) for one in folders[at:])
        yield Outdated(
            what=f"{choice.where}: {choice.record.name}",
            why=f"{file} has changed since {folder} was written, whose rows are taken as they are",
            cure=f"Have them written anew, `rm -r {behind}`; or, where the change makes no other "
            f"rows, `rm {folder / NOTE}`.",
        )
        return


def _changed(choice: Choice, folder: Path) -> Path | None:
    """The first file of a choice that is not what was noted."""
    try:
        noted = json.loads((folder / NOTE).read_text())
        for path, stat in stats_of_files(choice).items():
            size, mtime_ns, digest = noted.get(str(path), (*stat, ""))
            if stat != (size, mtime_ns) and (stat.size != size or _digest_of(path) != digest):
                return path
    except (OSError, ValueError, TypeError, AttributeError):
        pass  # nobody noted it
    return None


def _digest_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
