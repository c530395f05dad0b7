"""Tables of Delta Lake, of Iceberg and of streams of Spark: which files a snapshot has.

All keep data as Parquet files and the list of them in logs of their own, which the libraries of the
former two read. Files that a log does not list any more lie on beside the others. Rows that a
snapshot has deleted within a file, and columns renamed since it was written, are refused, not read
wrongly; so are tables of Hudi.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from recd_plugins.data.files import (
    FileFacts,
    SnapshotKind,
    in_partitions,
    place_of,
    snapshot_kind,
)
from recd_plugins.data.parquet_file import arrow_schema, read_footer
from recd_plugins.errors import CapabilityError, DataError, listed
from recd_plugins.storage.store import s3_endpoint_and_region
from recd_plugins.storage.uri import Location, Uri, location_of

__all__ = ["TableFormat", "check_latest", "snapshot_files"]

TableFormat = Literal["parquet", "delta", "iceberg"]
Found = tuple[dict[Location, FileFacts], str]
"""The files of a snapshot, and what the snapshot is called."""


KEEPERS: Mapping[SnapshotKind, str] = {
    "delta": "Delta Lake",
    "iceberg": "Iceberg",
    "spark": "a stream of Spark",
}
HUDI = (
    "is a table of Hudi, which is not read: older versions of its rows lie beside the latest. "
    "Write the latest as Parquet: spark.read.format('hudi').load(TABLE).write.parquet(FOLDER)"
)


def snapshot_files(table: Location, kind: SnapshotKind, snapshot: int | None) -> Found:
    """The files of a snapshot, by default of the latest one."""
    if kind == "hudi":
        raise DataError(f"{table}: {HUDI}.")
    if kind == "spark":
        try:
            return _spark(table)
        except DataError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{table}: its _spark_metadata cannot be read ({error}). Copy the whole folder."
            ) from error
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


def check_latest(table: Location, files: Sequence[Location]) -> None:
    """`DataError` for files in a table's folder that its latest snapshot does not have."""
    kind = snapshot_kind(table)
    assert kind is not None
    latest = {*map(place_of, snapshot_files(table, kind, None)[0])}
    gone = [str(file) for file in files if place_of(file) not in latest]
    if gone:
        raise DataError(
            f"{listed(gone, 4)}: {KEEPERS[kind]} keeps {table}, whose latest snapshot has no such "
            "file: its rows were deleted or written anew, or never committed. Name that folder, of "
            "which the files of the snapshot are read, or those files alone."
        )


def _spark(table: Location) -> Found:
    """The files of the batches that a stream has committed; what a batch left that failed, and was
    made again, lies beside them."""
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
                f"{log[name]}: is of version {version[:20]!r}, and v1 of Spark's log is read. "
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
        files[file] = FileFacts(size, mtime_ns, folders=in_partitions(end.split("/")[:-1]))
    return _any(dict(sorted(files.items())), table), f"batch {latest}"


def _below(folder: Location) -> dict[str, tuple[Location, int | None, int | None]]:
    """The files below a folder, by their path from there; of a store with size and time."""
    if isinstance(folder, Uri):
        stats = folder.listed(deep=True)
        return {file.below(folder): (file, *stat) for file, stat in stats.items()}
    return {
        file.relative_to(folder).as_posix(): (file, None, None)
        for file in folder.rglob("*")
        if not file.is_dir()
    }


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
    # A file of before a column came lacks it: it is null there. Fields of structs go by others.
    nulls = {
        field.name: pa.scalar(None, field.type)
        for field in pa.schema(found.schema())
        if not pa.types.is_struct(field.type)
    }
    files: dict[Location, FileFacts] = {}
    rows = zip(
        *(actions[name].to_pylist() for name in ("path", "size_bytes", "modification_time")),
        strict=True,
    )
    for at, (path, size, changed) in enumerate(rows):
        file = location_of(path) if "://" in path else table / unquote(path)
        own = {name: one[at] for name, one in partitions.items()}
        files[file] = FileFacts(size, changed * 10**6, partitions={**nulls, **own})
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
