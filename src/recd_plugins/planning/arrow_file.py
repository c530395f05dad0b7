"""Arrow files that say in their metadata what they hold: opened, or refused in words."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from recd_plugins.config.what_is import no_file
from recd_plugins.errors import DataError

__all__ = ["read_arrow", "write_arrow"]


def write_arrow(path: Path, table: pa.Table) -> None:
    """An Arrow IPC file, there whole or not at all; what was there before is replaced, or, where
    that is a link, what it leads to."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    part.replace(path)


def read_arrow(path: Path, key: bytes, schema: pa.Schema, what: str) -> pa.Table:
    """The table of an Arrow IPC file whose metadata has `key`, with the columns of `schema`.

    `what` says what that makes it, and how one is made.
    """
    if other := no_file(path):
        raise DataError(f"{path}: is {other}, not a file. {what}")
    if not path.exists():
        raise DataError(f"{path}: there is no such file. {what}")
    try:
        with pa.OSFile(str(path), "rb") as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)
    except PermissionError:
        raise DataError(f"{path}: may not be read by you. {what}") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: is no Arrow file, or damaged. {what}") from error
    if key not in (table.schema.metadata or {}):
        raise DataError(
            f"{path}: is an Arrow file of another kind: its columns are "
            f"{', '.join(table.schema.names)}. {what}"
        )
    for field in schema:
        _check(path, table, field, what)
    return table


def _check(path: Path, table: pa.Table, field: pa.Field, what: str) -> None:
    if field.name not in table.column_names:
        raise DataError(f"{path}: has no column {field.name!r}. {what}")
    column = table[field.name].combine_chunks()
    if column.type != field.type:
        raise DataError(f"{path}: column {field.name!r} is {column.type}, not {field.type}. {what}")
    inner = column.flatten().null_count if pa.types.is_large_list(column.type) else 0
    if inner or (column.null_count and not field.nullable):
        raise DataError(f"{path}: column {field.name!r} has nulls. {what}")
