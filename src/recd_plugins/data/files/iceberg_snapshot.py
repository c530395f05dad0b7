"""Tables of Iceberg: which files a snapshot has, by the library that reads their metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recd_plugins.data.files.footers import footers_of
from recd_plugins.data.files.iceberg_columns import REWRITE, IcebergColumns
from recd_plugins.data.files.iceberg_metadata import current_metadata
from recd_plugins.data.files.logged_tables import Snapshot, access_as, named_file
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.parquet.footer import arrow_schema
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["iceberg_snapshot"]

ICEBERG_NAMES = {
    "access_key": "s3.access-key-id",
    "secret_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "region": "s3.region",
    "endpoint_override": "s3.endpoint",
}


def iceberg_snapshot(table: Location, snapshot: int | None) -> Snapshot:
    """The files of a snapshot, by default the current one."""
    from pyiceberg.table import StaticTable

    described = current_metadata(table)
    found = StaticTable.from_metadata(str(described), access_as(table, ICEBERG_NAMES))
    chosen = found.current_snapshot() if snapshot is None else found.snapshot_by_id(snapshot)
    if chosen is None:
        known = ", ".join(str(one.snapshot_id) for one in found.metadata.snapshots) or "none"
        which = "current snapshot" if snapshot is None else f"snapshot {snapshot}"
        raise DataError(f"{table}: has no {which}. Its snapshots are: {known}.")
    schema = found.schema()
    if snapshot is not None and chosen.schema_id is not None:  # the columns that it had then
        schema = found.metadata.schema_by_id(chosen.schema_id) or schema
    columns = IcebergColumns(schema, found.metadata.schemas, found.metadata.name_mapping())
    files: dict[Location, FileFacts] = {}
    partitions: dict[Location, dict[int, Any]] = {}
    for one in _iceberg_files(found, chosen.snapshot_id, table):
        file = named_file(one.file_path, table)
        files[file] = FileFacts(
            one.file_size_in_bytes, 0, columns=columns.roots, names=columns.names
        )
        fields = found.specs()[one.spec_id].fields
        partitions[file] = {
            field.source_id: one.partition[at]
            for at, field in enumerate(fields)
            if str(field.transform) == "identity"
        }
    for file, facts, footer in [*footers_of(files)]:
        lacked = columns.lacked(arrow_schema(footer.metadata, file), partitions[file], file)
        files[file] = replace(facts, digest="", partitions=lacked)
    return files, f"snapshot {chosen.snapshot_id}"


def _iceberg_files(found: Any, snapshot: int, table: Location) -> Iterator[Any]:
    """What a snapshot knows of each of its files; raises `DataError` if rows in some of them are
    deleted."""
    deleted = (
        f"{table}: has delete files: rows that are deleted but still lie in its files. {REWRITE}; "
        "or name a snapshot from before they were deleted."
    )
    try:
        tasks = list(found.scan(snapshot_id=snapshot).plan_files())
    except ValueError as error:
        if "equality delete" not in str(error):
            raise
        raise DataError(deleted) from error
    for task in tasks:
        if task.delete_files:
            raise DataError(deleted)
        yield task.file
