"""Tables of Delta Lake, Iceberg and Spark streams: which files a snapshot has.

All keep data as Parquet files, and a list of these in logs of their own; the libraries of the first
two read their logs. Files that a log no longer lists still lie beside the others. The log says what
a file lacks: the values of its partition, and nulls for a column that was added later. It also says
what the table calls the columns of the file. Snapshots that have deleted rows within a file are
refused, not read wrongly; so are tables of other programs that keep a log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from recd_plugins.data.files.delta_columns import MAPPING_MODE, delta_names
from recd_plugins.data.files.footers import footers_of
from recd_plugins.data.files.iceberg_columns import REWRITE, IcebergColumns
from recd_plugins.data.files.iceberg_metadata import current_metadata
from recd_plugins.data.files.logs import SnapshotKind, snapshot_kind
from recd_plugins.data.files.partitions import partitions_of
from recd_plugins.data.files.paths import place_of
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.parquet.footer import arrow_schema
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
ANEW = "Write its latest rows as Parquet: spark.read.format('%s').load(TABLE).write.parquet(FOLDER)"
NOT_READ: Mapping[SnapshotKind, str] = {
    "hudi": "is a table of Hudi, which is not read: older versions of its rows lie beside the "
    f"latest ones. {ANEW % 'hudi'}. `CALL show_commits` lists earlier commits, and "
    ".option('as.of.instant', TIME) loads the table as it was at one of them",
    "paimon": "is a table of Paimon, which is not read: older versions of its rows lie beside the "
    f"latest ones. {ANEW % 'paimon'}. The table `TABLE$snapshots` lists earlier snapshots, and "
    ".option('scan.snapshot-id', ID) loads one of them",
    "lance": "is a table of Lance, which is not read: its files are not Parquet. Write its latest "
    "rows as Parquet: pyarrow.dataset.write_dataset(lance.dataset(TABLE).scanner().to_reader(), "
    "FOLDER, format='parquet'). lance.dataset(TABLE).versions() lists earlier versions, and "
    "lance.dataset(TABLE, version=N) opens one of them",
}
"""What errors say about tables of which other programs keep a log."""
UNSUPPORTED = re.compile(
    "feature|catalog-managed|unsupported field type|unknown format version", re.IGNORECASE
)
"""What a library says of a table that needs features it does not know."""


def snapshot_files(table: Location, kind: SnapshotKind, snapshot: int | None) -> Found:
    """The files of a snapshot, by default the latest one."""
    if kind in NOT_READ:
        raise DataError(f"{table}: {NOT_READ[kind]}.")
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
    except Exception as error:  # libraries have their own errors, some just Exceptions
        which = "" if snapshot is None else f" of snapshot {snapshot}"
        why = _message(error, table)
        if UNSUPPORTED.search(why):
            raise DataError(
                f"{table}: needs a reader that knows more than {package} does ({why}). "
                f"{ANEW % kind}."
            ) from error
        raise DataError(
            f"{table}: {package} finds no files{which} here ({why}). Check the path, the format "
            "and the snapshot."
        ) from error


def _message(error: Exception, table: Location) -> str:
    """The message of a library's error, without secrets."""
    return table.hidden(str(error)) if isinstance(table, Uri) else str(error)


def check_latest(table: Location, files: Sequence[Location]) -> None:
    """Raises `DataError` for files in a table's folder that its latest snapshot does not have."""
    kind = snapshot_kind(table)
    assert kind is not None
    latest = {*map(place_of, snapshot_files(table, kind, None)[0])}
    gone = [str(file) for file in files if place_of(file) not in latest]
    if gone:
        raise DataError(
            f"{listed(gone, 4)}: {KEEPERS[kind]} keeps {table}, whose latest snapshot has no such "
            "file: its rows were deleted, rewritten or never committed. Name that folder to read "
            "the files of the snapshot, or name only files of the snapshot."
        )


def _spark(table: Location) -> Found:
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
    return _any(dict(sorted(files.items())), table), f"batch {latest}"


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


def _delta(table: Location, version: int | None) -> Found:
    from deltalake import DeltaTable

    access = _access(table, DELTA_NAMES)
    if access.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        access["AWS_ALLOW_HTTP"] = "true"
    found = DeltaTable(str(table), version=version, storage_options=access)
    _check_delta(found, table)
    actions = pa.table(found.get_add_actions(flatten=False))
    partitions = {}
    if "partition" in actions.schema.names:
        column = actions["partition"].combine_chunks()
        partitions = {field.name: column.field(field.name) for field in column.type}
    # A file from before a column was added lacks it: it is null there.
    schema = pa.schema(found.schema())
    mode = found.metadata().configuration.get(MAPPING_MODE, "none")
    names = delta_names(json.loads(found.schema().to_json()), mode, table, ANEW % "delta")
    nulls = {field.name: pa.scalar(None, field.type) for field in schema}
    columns = frozenset(schema.names)
    files: dict[Location, FileFacts] = {}
    rows = zip(
        *(actions[name].to_pylist() for name in ("path", "size_bytes", "modification_time")),
        strict=True,
    )
    for at, (path, size, changed) in enumerate(rows):
        own = {name: one[at] for name, one in partitions.items()}
        file = _named(unquote(path), table)
        values = {**nulls, **own}
        files[file] = FileFacts(
            size, changed * 10**6, partitions=values, columns=columns, names=names
        )
    return _any(files, table), f"version {found.version()}"


def _check_delta(found: Any, table: Location) -> None:
    """Raises `DataError` for a table that cannot be read by its list of files only."""
    protocol = found.protocol()
    unknown = sorted({*(protocol.reader_features or ())} - DELTA_FEATURES)
    if unknown or protocol.min_reader_version > DELTA_VERSION:
        asked = listed(unknown) if unknown else f"version {protocol.min_reader_version}"
        raise DataError(
            f"{table}: needs a reader that knows {asked} of Delta Lake's protocol, which this one "
            f"does not. {ANEW % 'delta'}."
        )
    if "deletionVectors" not in (protocol.reader_features or ()):
        return
    try:
        deleted = pa.table(found.deletion_vectors()).num_rows
    except Exception as error:  # the library's own error derives from Exception
        raise DataError(
            f"{table}: may have deletion vectors, for rows that are deleted but still lie in its "
            f"files, and deltalake cannot read them ({_message(error, table)}). {ANEW % 'delta'}."
        ) from error
    if deleted:
        raise DataError(
            f"{table}: has deletion vectors: rows that are deleted but still lie in its files. Run "
            "REORG TABLE ... APPLY (PURGE), or name a snapshot from before they were deleted."
        )


def _named(place: str, table: Location) -> Location:
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


def _iceberg(table: Location, snapshot: int | None) -> Found:
    from pyiceberg.table import StaticTable

    described = current_metadata(table)
    found = StaticTable.from_metadata(str(described), _access(table, ICEBERG_NAMES))
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
        file = _named(one.file_path, table)
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
    return _any(files, table), f"snapshot {chosen.snapshot_id}"


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


def _any(files: dict[Location, FileFacts], table: Location) -> dict[Location, FileFacts]:
    if not files:
        raise DataError(
            f"{table}: its snapshot has no files, so there are no rows. Name another snapshot."
        )
    return files


DELTA_VERSION = 3
"""The known version of Delta Lake's protocol for readers."""
DELTA_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    }
)
"""What that version requires readers to know in addition to the list of files. A table may ask for
deletion vectors and have none."""
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
