"""Folders for whose files a program keeps a log: some of the files may no longer belong to the
table."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from recd_plugins.data.files.iceberg_metadata import is_metadata
from recd_plugins.storage.uri import Location, Uri

__all__ = ["SnapshotKind", "logs_below", "snapshot_kind"]

SnapshotKind = Literal["delta", "iceberg", "spark", "hudi", "paimon", "lance"]
"""The programs that keep a log of a folder's files: Delta Lake, Iceberg, streams of Spark; and
others, whose logs are not read."""


def snapshot_kind(folder: Location, folders: Collection[str] | None = None) -> SnapshotKind | None:
    """Which program keeps a log of a folder's files, some of which may no longer belong to the
    table; None if none does. `folders` are the names of the folders in it, if they are known."""

    def has(name: str) -> bool:
        return (folder / name).is_dir() if folders is None else name in folders

    logs: dict[str, SnapshotKind] = {
        "_delta_log": "delta",
        ".hoodie": "hudi",
        "_spark_metadata": "spark",
    }
    if (found := next((kind for name, kind in logs.items() if has(name)), None)) is not None:
        return found
    if has("metadata") and is_metadata(file.name for file in (folder / "metadata").glob("*")):
        return "iceberg"
    if has("_versions") and any(True for _ in (folder / "_versions").glob("*.manifest")):
        return "lance"
    if has("schema") and (has("snapshot") or has("manifest")):
        return "paimon" if any(True for _ in (folder / "schema").glob("schema-*")) else None
    return None


def logs_below(top: Uri, files: Iterable[Uri]) -> dict[Uri, Uri | None]:
    """For a folder whose files were all listed, and for each folder below it: the folder itself if
    a program keeps a log of its files, else None."""
    within: dict[Uri, set[str]] = {top: set()}
    for folder in {file.parent for file in files}:
        above = top
        for name in filter(None, folder.below(top).split("/")):
            within[above].add(name)
            above = above / name
            within.setdefault(above, set())
    return {one: one if snapshot_kind(one, names) else None for one, names in within.items()}
