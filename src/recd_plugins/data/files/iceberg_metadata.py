"""Which metadata file in a folder describes an Iceberg table as it is now.

The table's catalog knows it. A Hadoop catalog keeps it in the folder, as `version-hint.text`. With
other catalogs the folder shows it if files are numbered consecutively and each lists those before
it. If that leaves a doubt, the user must name the file: an older one would be read just as well.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from recd_plugins.errors import DataError, listed
from recd_plugins.storage.uri import Location

__all__ = ["current_metadata", "is_metadata"]

HINT = "version-hint.text"
SUFFIX = ".metadata.json"
NAME = re.compile(r"(?P<name>.+?)(\.gz)?\.metadata\.json(\.gz)?")
NUMBERED = re.compile(r"(?P<v>v?)(?P<number>\d+)(?P<tried>-.+)?")
"""The names of metadata files: v12 with a Hadoop catalog, 00012-... with others, where letters tell
apart what was written at the same time."""
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""A name without a number, even if it begins with digits."""


@dataclass(frozen=True)
class MetadataFile:
    """What a metadata file says about which one is the latest."""

    table: str | None
    """The table that it describes, whatever else lies in its folder."""
    changed: int
    """When it was written, in ms."""
    before: frozenset[str]
    """The names of the files that stood before it."""


def is_metadata(names: Iterable[str]) -> bool:
    """Whether some files in a folder called `metadata` are those of an Iceberg table."""
    return any(name == HINT or NAME.fullmatch(name) for name in names)


def current_metadata(table: Location) -> Location:
    """The file that describes the table: the named file itself, or the latest in the folder. Raises
    `DataError` if only the catalog knows which one that is."""
    if table.name.endswith(SUFFIX):
        return table
    there: dict[str, Location] = {file.name: file for file in (table / "metadata").glob("*")}
    files = {name: file for name, file in there.items() if NAME.fullmatch(name)}
    if not files:
        raise DataError(
            f"{table}: holds no metadata/*.metadata.json, so it is not a table of Iceberg. Name "
            "the table's folder, or the metadata file that its catalog names."
        )
    hinted = _hinted(there[HINT], files, table) if HINT in there else None
    newest, oldest = _ends(files)
    if hinted is not None:
        newest = list(dict.fromkeys([hinted, *newest]))
    looked_at = {name: _described(files[name]) for name in newest}
    for name in oldest:
        with suppress(DataError):
            looked_at.setdefault(name, _described(files[name]))
    heads = [name for name in newest if not any(name in one.before for one in looked_at.values())]
    if hinted is not None or not heads:
        heads = newest[:1]
    found = looked_at[heads[0]]
    later = [name for name, one in looked_at.items() if one.changed > found.changed]
    tables = {one.table for one in looked_at.values()} - {None}
    if len(heads) > 1 or later or len(tables) > 1:
        doubtful = list(dict.fromkeys([*heads, *later, *newest]))
        raise DataError(
            f"{table}: only its catalog knows which of metadata/{listed(sorted(doubtful), 4)} is "
            "its latest. Name that file."
        )
    file = files[heads[0]]
    if not file.name.endswith(SUFFIX):
        raise DataError(
            f"{file}: is compressed, and pyiceberg does not recognise its name as that of a "
            f"metadata file. Unpack it (gunzip -k {file.name}), and name the result."
        )
    return file


def _hinted(hint: Location, files: Mapping[str, Location], table: Location) -> str | None:
    """The file that the hint names, or a later one; None if the hint is empty."""
    text = hint.read_bytes().decode(errors="replace").strip()
    if not text:
        return None
    named = [name for name in files if text in (name, name.removesuffix(SUFFIX))]
    if not named and text.isdecimal():
        numbers = {_number(name): name for name in files if _is_by_hadoop(name)}
        number = int(text)
        while number + 1 in numbers:  # the hint is written last, and may be missing
            number += 1
        same = [name for name in files if _number(name) == number and not _is_by_hadoop(name)]
        named = [numbers[number]] if number in numbers else same
    if len(named) != 1:
        raise DataError(
            f"{hint}: says {text[:40]!r}, and of such a metadata file there "
            f"{'is none' if not named else f'are {len(named)}'} beside it. Copy the whole folder "
            f"{table}, or name the metadata file that its catalog has."
        )
    return named[0]


def _ends(files: Collection[str]) -> tuple[list[str], list[str]]:
    """The files with the highest number, and those with the lowest, for each way of numbering, and
    all files without a number. A table that was dropped and made again, or moved to another
    catalog, starts counting again."""
    newest: list[str] = []
    oldest: list[str] = []
    for by_hadoop in (True, False):
        each = [one for one in files if _is_by_hadoop(one) == by_hadoop and _number(one) >= 0]
        if each:
            numbers = [*map(_number, each)]
            newest += [one for one in each if _number(one) == max(numbers)]
            oldest += [one for one in each if _number(one) == min(numbers)]
    return [*newest, *(one for one in files if _number(one) < 0)], oldest


def _is_by_hadoop(name: str) -> bool:
    found = _numbered(name)
    return found is not None and bool(found["v"]) and not found["tried"]


def _number(name: str) -> int:
    """The number of a metadata file, or -1."""
    found = _numbered(name)
    return -1 if found is None else int(found["number"])


def _numbered(name: str) -> re.Match[str] | None:
    found = NAME.fullmatch(name)
    assert found is not None
    own = found["name"]
    return None if UUID.fullmatch(own) else NUMBERED.fullmatch(own)


def _described(file: Location) -> MetadataFile:
    try:
        raw = file.read_bytes()
        described = json.loads(gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw)
        before: Sequence[Mapping[str, Any]] = described.get("metadata-log") or ()
        return MetadataFile(
            described.get("table-uuid"),
            int(described.get("last-updated-ms") or 0),
            frozenset(str(one["metadata-file"]).rsplit("/", 1)[-1] for one in before),
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file}: cannot be read as metadata of an Iceberg table ({error}). Copy the whole "
            "folder, or name the metadata file that its catalog has."
        ) from error
