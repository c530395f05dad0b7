"""Streams of Spark: which files the batches of a stream wrote."""

from __future__ import annotations

import json
from urllib.parse import unquote, urlsplit

from recd_plugins.data.files.logged_tables import Snapshot
from recd_plugins.data.files.partitions import partitions_of
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location, Uri

__all__ = ["spark_snapshot"]


def spark_snapshot(table: Location) -> Snapshot:
    """The files of the batches that a stream has committed. Files that a failed and repeated batch
    left behind lie beside them."""
    log = {file.name: file for file in (table / "_spark_metadata").glob("*")}
    batches = {name for name in log if name.removesuffix(".compact").isdigit()}
    latest = max((int(name.removesuffix(".compact")) for name in batches), default=-1)
    first = max((int(name.split(".")[0]) for name in batches if "." in name), default=-1)
    names = [f"{first}.compact"] * (first >= 0) + [str(n) for n in range(first + 1, latest + 1)]
    added: dict[str, bool] = {}
    for name in names:
        if name not in batches:
            raise DataError(f"{table}: _spark_metadata lacks batch {name}. Copy the whole folder.")
        version, *lines = log[name].read_text().splitlines()
        if version != "v1":
            raise DataError(
                f"{log[name]}: is of version {version[:20]!r} of Spark's log, but only v1 is read. "
                "Write the table anew: spark.read.parquet(TABLE).write.parquet(FOLDER)."
            )
        for entry in map(json.loads, lines):
            added[unquote(urlsplit(entry["path"]).path)] = entry.get("action") != "delete"
    there = _below(table)
    files: dict[Location, FileFacts] = {}
    for path in (path for path, is_added in added.items() if is_added):
        parts = path.strip("/").split("/")  # the folder may lie elsewhere now
        ends = ("/".join(parts[at:]) for at in reversed(range(len(parts))))
        end = next((end for end in ends if end in there), None)
        if end is None:
            raise DataError(
                f"{table}: has no {parts[-1]}, which its _spark_metadata lists. Copy the whole "
                "folder."
            )
        file, size, mtime_ns = there[end]
        files[file] = FileFacts(size, mtime_ns, folders=partitions_of(end.split("/")[:-1]))
    return dict(sorted(files.items())), f"batch {latest}"


def _below(folder: Location) -> dict[str, tuple[Location, int | None, int | None]]:
    """The files below a folder, by their relative path; on a store with size and time."""
    if isinstance(folder, Uri):
        stats = folder.listed(deep=True)
        return {file.below(folder): (file, *stat) for file, stat in stats.items()}
    return {
        file.relative_to(folder).as_posix(): (file, None, None)
        for file in folder.rglob("*")
        if not file.is_dir()
    }
