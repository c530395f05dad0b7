"""Files that were found by their names, and that the log of their table no longer lists."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from recd_plugins.data.files.logs import snapshot_kind
from recd_plugins.data.files.snapshots import check_latest
from recd_plugins.errors import DataError, listed
from recd_plugins.storage.uri import Location, Uri

__all__ = ["check_none_left_behind"]

PART_OF_TABLE = re.compile(r".*=.*|[\d_-]+|data|bucket-\w+")
"""The names of folders within a table's: partitions, days, and where Iceberg and Paimon have their
files."""
DUCKLAKE = re.compile(r"ducklake-[0-9a-f-]{36}(-delete)?\.parquet")
"""The names of files of DuckLake, which keeps its log in a database, wherever that is."""


def check_none_left_behind(
    files: Iterable[Location], known: Mapping[Uri, Uri | None] | None = None
) -> None:
    """Raises `DataError` for files that were not found by a log and that their folder's log no
    longer lists. Folders of a store that are `known` (see `logs_below`) are not looked at again."""
    files = list(files)
    if lake := [str(file) for file in files if DUCKLAKE.fullmatch(file.name)]:
        raise DataError(
            f"{listed(lake, 2)}: of a table of DuckLake, which is not read: only its catalog, a "
            "database, knows which files a snapshot has, and which of their rows are deleted. "
            "Have DuckDB write its latest rows as Parquet: COPY (FROM LAKE.TABLE) TO "
            "'rows.parquet'. LAKE.snapshots() lists earlier ones; FROM LAKE.TABLE AT (VERSION => "
            "N) is one of them."
        )
    above: dict[Path, Path | None] = {}
    stored = dict(known or {})
    kept: dict[Location, list[Location]] = {}
    for file in files:
        if isinstance(file, Path):
            folder: Location | None = _kept_above(Path(os.path.abspath(file.parent)), above)
        else:
            folder = _kept_on_store(file.parent, stored)
        if folder is not None:
            kept.setdefault(folder, []).append(file)
    for folder, some in kept.items():
        check_latest(folder, some)


def _kept_above(folder: Path, known: dict[Path, Path | None]) -> Path | None:
    """This folder, or the nearest above it, for which a program keeps a log of files; else None."""
    if folder not in known:
        if snapshot_kind(folder) is not None:
            known[folder] = folder
        else:
            top = folder == folder.parent
            known[folder] = None if top else _kept_above(folder.parent, known)
    return known[folder]


def _kept_on_store(folder: Uri, known: dict[Uri, Uri | None]) -> Uri | None:
    """The table's folder, if a program keeps a log of its files, else None. Each look is a request:
    partitions are skipped, and the last look is at the first folder above whose name is not that of
    a part. A folder that may not be listed has no log."""
    while True:
        part = len(folder.parts) > 2 and PART_OF_TABLE.fullmatch(folder.name)
        if folder not in known and not (part and "=" in folder.name):
            known[folder] = None
            with suppress(DataError):
                known[folder] = folder if snapshot_kind(folder, folder.listing()[1]) else None
        if not part or known.get(folder) is not None:
            return known[folder]
        folder = folder.parent
