"""Tables of Delta Lake: which files a version has, by the library that reads their log."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from recd_plugins.data.files.delta_columns import MAPPING_MODE, delta_names
from recd_plugins.data.files.logged_tables import (
    Snapshot,
    access_as,
    named_file,
    without_secrets,
    written_anew,
)
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.errors import DataError, listed
from recd_plugins.storage.uri import Location

__all__ = ["delta_snapshot"]

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


def delta_snapshot(table: Location, version: int | None) -> Snapshot:
    """The files of a version, by default the latest one."""
    from deltalake import DeltaTable

    access = access_as(table, DELTA_NAMES)
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
    names = delta_names(json.loads(found.schema().to_json()), mode, table, written_anew("delta"))
    nulls = {field.name: pa.scalar(None, field.type) for field in schema}
    columns = frozenset(schema.names)
    files: dict[Location, FileFacts] = {}
    rows = zip(
        *(actions[name].to_pylist() for name in ("path", "size_bytes", "modification_time")),
        strict=True,
    )
    for at, (path, size, changed) in enumerate(rows):
        own = {name: one[at] for name, one in partitions.items()}
        file = named_file(unquote(path), table)
        values = {**nulls, **own}
        files[file] = FileFacts(
            size, changed * 10**6, partitions=values, columns=columns, names=names
        )
    return files, f"version {found.version()}"


def _check_delta(found: Any, table: Location) -> None:
    """Raises `DataError` for a table that cannot be read by its list of files only."""
    protocol = found.protocol()
    unknown = sorted({*(protocol.reader_features or ())} - DELTA_FEATURES)
    if unknown or protocol.min_reader_version > DELTA_VERSION:
        asked = listed(unknown) if unknown else f"version {protocol.min_reader_version}"
        raise DataError(
            f"{table}: needs a reader that knows {asked} of Delta Lake's protocol, which this one "
            f"does not. {written_anew('delta')}."
        )
    if "deletionVectors" not in (protocol.reader_features or ()):
        return
    try:
        deleted = pa.table(found.deletion_vectors()).num_rows
    except Exception as error:  # the library's own error derives from Exception
        raise DataError(
            f"{table}: may have deletion vectors, for rows that are deleted but still lie in its "
            f"files, and deltalake cannot read them ({without_secrets(error, table)}). "
            f"{written_anew('delta')}."
        ) from error
    if deleted:
        raise DataError(
            f"{table}: has deletion vectors: rows that are deleted but still lie in its files. Run "
            "REORG TABLE ... APPLY (PURGE), or name a snapshot from before they were deleted."
        )
