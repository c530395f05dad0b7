"""Tables of Delta Lake and of Iceberg: their own libraries say which files a snapshot has.

Both keep data as Parquet files and the list of them in logs of their own. Rows that a snapshot has
deleted within a file, and columns renamed since it was written, are refused, not read wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import unquote

import pyarrow as pa

from recd_plugins.data.files import FileFacts
from recd_plugins.data.parquet_file import arrow_schema, read_footer
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.storage.store import s3_endpoint_and_region
from recd_plugins.storage.uri import Location, Uri, location_of

__all__ = ["TableFormat", "snapshot_files"]

TableFormat = Literal["parquet", "delta", "iceberg"]
Found = tuple[dict[Location, FileFacts], str]
"""The files of a snapshot, and what the snapshot is called."""


def snapshot_files(table: Location, kind: TableFormat, snapshot: int | None) -> Found:
    """The files of a snapshot, by default of the latest one."""
    read: Callable[[Location, int | None], Found] = _delta if kind == "delta" else _iceberg
    package = "deltalake" if kind == "delta" else "pyiceberg"
    try:
        return read(table, snapshot)
    except ImportError:
        raise CapabilityError(
            f"{table}: a table of format {kind} is read by {package}, which is not installed: "
            f"pip install 'recd-plugins[{kind}]'."
        ) from None
    except DataError:
        raise
    except Exception as error:  # each library has its own, some of which derive from Exception
        which = "" if snapshot is None else f" of snapshot {snapshot}"
        why = table.hidden(str(error)) if isinstance(table, Uri) else str(error)
        raise DataError(
            f"{table}: {package} finds no files{which} here ({why}). Check the path, the format "
            "and the snapshot."
        ) from error


def _delta(table: Location, version: int | None) -> Found:
    from deltalake import DeltaTable

    access = _access(table, DELTA_NAMES)
    if access.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        access["AWS_ALLOW_HTTP"] = "true"
    found = DeltaTable(str(table), version=version, storage_options=access)
    if found.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise DataError(
            f"{table}: maps its columns to other names in its files, which is not read. Rewrite it "
            "without delta.columnMapping.mode."
        )
    if pa.table(found.deletion_vectors()).num_rows:
        raise DataError(
            f"{table}: has deletion vectors: rows that are deleted, but lie in its files. Run "
            "REORG TABLE ... APPLY (PURGE), or name a snapshot of before they were deleted."
        )
    actions = pa.table(found.get_add_actions(flatten=False))
    partitions = {}
    if "partition" in actions.schema.names:
        column = actions["partition"].combine_chunks()
        partitions = {field.name: column.field(field.name) for field in column.type}
    files: dict[Location, FileFacts] = {}
    rows = zip(
        *(actions[name].to_pylist() for name in ("path", "size_bytes", "modification_time")),
        strict=True,
    )
    for at, (path, size, changed) in enumerate(rows):
        file = location_of(path) if "://" in path else table / unquote(path)
        files[file] = FileFacts(
            size, changed * 10**6, partitions={name: one[at] for name, one in partitions.items()}
        )
    return _any(files, table), f"version {found.version()}"


def _iceberg(table: Location, snapshot: int | None) -> Found:
    from pyiceberg.table import StaticTable

    described = _iceberg_metadata(table)
    found = StaticTable.from_metadata(str(described), _access(table, ICEBERG_NAMES))
    chosen = found.current_snapshot() if snapshot is None else found.snapshot_by_id(snapshot)
    if chosen is None:
        known = ", ".join(str(one.snapshot_id) for one in found.metadata.snapshots) or "none"
        raise DataError(f"{table}: has no snapshot {snapshot or ''}. Known: {known}.")
    names = {field.field_id: field.name for field in found.schema().fields}
    files: dict[Location, FileFacts] = {}
    for task in found.scan(snapshot_id=chosen.snapshot_id).plan_files():
        if task.delete_files:
            raise DataError(
                f"{table}: has delete files: rows that are deleted, but lie in its files. Run "
                "rewrite_data_files on it, or name a snapshot of before they were deleted."
            )
        path = task.file.file_path
        file = _with_access(location_of(path), table)
        files[file] = FileFacts(task.file.file_size_in_bytes, 0)
    for file in files:
        _check_names(file, names)
    return _any(files, table), f"snapshot {chosen.snapshot_id}"


def _check_names(file: Location, names: Mapping[int, str]) -> None:
    """Iceberg knows columns by number: a file may have an older name for one, or a column that was
    dropped, whose name another one has now."""
    for field in arrow_schema(read_footer(file).metadata, file):
        number = (field.metadata or {}).get(b"PARQUET:field_id")
        now = names.get(int(number)) if number else None
        if number and now is None and field.name in names.values():
            raise DataError(
                f"{file}: has column {field.name!r} of before it was dropped and made anew, which "
                "is not read. Run rewrite_data_files on the table."
            )
        if now is not None and now != field.name:
            raise DataError(
                f"{file}: has column {now!r} under its name of before, {field.name!r}, which is "
                "not read. Run rewrite_data_files on the table."
            )


def _iceberg_metadata(table: Location) -> Location:
    """The file that describes the table: itself, or the latest of its folder."""
    if table.name.endswith(".metadata.json"):
        return table
    described: list[Location] = [*(table / "metadata").glob("*.metadata.json")]
    if not described:
        raise DataError(
            f"{table}: holds no metadata/*.metadata.json, so it is no table of Iceberg. Name its "
            "folder, or the metadata file that its catalog has."
        )
    return max(described, key=lambda file: int(file.name.lstrip("v").split("-")[0].split(".")[0]))


def _with_access(file: Location, table: Location) -> Location:
    """A file that a table names is reached as the table is."""
    return file.reached_as(table) if isinstance(file, Uri) and isinstance(table, Uri) else file


def _any(files: dict[Location, FileFacts], table: Location) -> dict[Location, FileFacts]:
    if not files:
        raise DataError(f"{table}: its snapshot has no files, so no rows. Name another.")
    return files


DELTA_NAMES = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint_override": "AWS_ENDPOINT_URL",
}
ICEBERG_NAMES = {
    "access_key": "s3.access-key-id",
    "secret_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "region": "s3.region",
    "endpoint_override": "s3.endpoint",
}


def _access(table: Location, names: Mapping[str, str]) -> dict[str, str]:
    """The access to a table's store, under a library's own names."""
    if not isinstance(table, Uri):
        return {}
    endpoint, region = s3_endpoint_and_region(table.access)
    options = {**table.access, "endpoint_override": endpoint, "region": region}
    return {named: options[name] for name, named in names.items() if options.get(name)}
