"""Arrow files that say in their metadata what they hold: opened, or refused in words.

A digest of the rows is written with them, so that no number of a file changes unnoticed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.errors import DataError
from recd_plugins.storage.no_file import no_file
from recd_plugins.storage.whole_file import whole_file

__all__ = ["read_arrow", "write_arrow"]

DIGEST = b"recd.digest"


def write_arrow(path: str | Path, table: pa.Table) -> None:
    """An Arrow IPC file, there whole or not at all; what was there before is replaced, or, where
    that is a link, what it leads to."""
    metadata = dict(table.schema.metadata or {}) | {DIGEST: _digest(table)}
    table = table.replace_schema_metadata(metadata)
    with (
        whole_file(path) as part,
        pa.OSFile(str(part), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)


def read_arrow(path: str | Path, key: bytes, schema: pa.Schema, what: str) -> pa.Table:
    """The table of an Arrow IPC file whose metadata has `key`, with the columns of `schema`.

    `what` says what that makes it, and how one is made.
    """
    path = Path(path)
    if other := no_file(path):
        raise DataError(f"{path}: is {other}, not a file. {what}")
    if not path.exists():
        raise DataError(f"{path}: there is no such file. {what}")
    try:
        with pa.OSFile(str(path), "rb") as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)
    except PermissionError:
        raise DataError(f"{path}: you may not read it. {what}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no Arrow file, or damaged. {what}") from error
    if key not in (table.schema.metadata or {}):
        raise DataError(
            f"{path}: is an Arrow file of another kind: its columns are "
            f"{', '.join(table.schema.names)}. {what}"
        )
    # One that an older version wrote has none.
    if table.schema.metadata.get(DIGEST) not in (None, _digest(table)):
        raise DataError(f"{path}: is damaged: it does not hold what was written. {what}")
    for field in schema:
        _check(path, table, field, what)
    return table


def _digest(table: pa.Table) -> bytes:
    """The digest of all rows and of the metadata, however they lie in memory."""
    found = hashlib.sha256()
    metadata = table.schema.metadata or {}
    found.update(repr(sorted(one for one in metadata.items() if one[0] != DIGEST)).encode())
    for name in table.column_names:
        found.update(name.encode())
        _add(found, table[name].combine_chunks())
    return found.hexdigest().encode()


def _add(digest: Any, array: pa.Array) -> None:
    digest.update(f"{array.type} {len(array)} {array.null_count};".encode())
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _add(digest, pc.list_value_length(array))
        _add(digest, array.flatten())
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        if array.null_count:
            digest.update(array.is_valid().to_numpy(zero_copy_only=False).tobytes())
            array = array.fill_null(0)
        digest.update(array.to_numpy(zero_copy_only=False).data)
    else:
        digest.update(repr(array.to_pylist()).encode())


def _check(path: Path, table: pa.Table, field: pa.Field, what: str) -> None:
    if field.name not in table.column_names:
        raise DataError(f"{path}: has no column {field.name!r}. {what}")
    column = table[field.name].combine_chunks()
    if column.type != field.type:
        raise DataError(f"{path}: column {field.name!r} is {column.type}, not {field.type}. {what}")
    inner = column.flatten().null_count if pa.types.is_large_list(column.type) else 0
    if inner or (column.null_count and not field.nullable):
        raise DataError(f"{path}: column {field.name!r} has nulls. {what}")
