"""What tables have in common for whose files a program keeps a log: how files are named in it, how
libraries reach it, and what is done with a table that they cannot read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.storage.store import s3_endpoint_and_region
from recd_plugins.storage.uri import Location, Uri, location_of

__all__ = ["Snapshot", "access_as", "named_file", "without_secrets", "written_anew"]

Snapshot = tuple[dict[Location, FileFacts], str]
"""The files of a snapshot, and what the snapshot is called."""


def named_file(place: str, table: Location) -> Location:
    """A file as a table names it: by its path from the table's folder, or by an absolute one, which
    is reached in the same way as the table."""
    scheme, parted, path = place.partition(":")
    if not parted or "/" in scheme or not path.startswith("/"):
        return table / place
    if scheme == "file":  # as file:///logs or file:/logs
        return Path("/" + path.lstrip("/"))
    container, _, key = path.removeprefix("//").partition("/")
    if not container or not path.startswith("//"):
        return location_of(place)
    top = location_of(f"{scheme}://{container}")
    assert isinstance(top, Uri)
    return (top.reached_as(table) if isinstance(table, Uri) else top) / key


def access_as(table: Location, names: Mapping[str, str]) -> dict[str, str]:
    """The access to a table's store, under a library's own names."""
    if not isinstance(table, Uri):
        return {}
    endpoint, region = s3_endpoint_and_region(table.access)
    options = {**table.access, "endpoint_override": endpoint, "region": region}
    return {named: options[name] for name, named in names.items() if options.get(name)}


def without_secrets(error: Exception, table: Location) -> str:
    """The message of a library's error, without secrets."""
    return table.hidden(str(error)) if isinstance(table, Uri) else str(error)


def written_anew(kind: str) -> str:
    """How Spark writes a table that cannot be read, in a format that can be."""
    return (
        f"Write its latest rows as Parquet: spark.read.format('{kind}').load(TABLE)"
        ".write.parquet(FOLDER)"
    )
