"""The footer of a Parquet file: its metadata, the digest that identifies it, and the types of the
columns in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.parquet.left_out import LEFT_OUT, lists_left_out
from recd_plugins.data.parquet.not_parquet import (
    MAGIC,
    NO_KEY,
    UNKNOWN_TYPES,
    WITH_OTHERS,
    read_as_parquet,
)
from recd_plugins.data.parquet.table_names import TableNames
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["Footer", "arrow_schema", "footer_in", "footer_of", "opened_bytes", "read_footer"]

R = TypeVar("R")
TAIL = 64 << 10
"""Bytes that are read from the end of a file at once."""
SIGNED = 28
"""The bytes after a readable footer, in a file with encrypted columns."""


class Footer(NamedTuple):
    """A footer, and the digest that identifies it."""

    metadata: pq.FileMetaData
    digest: str
    raw: bytes

    @classmethod
    def of(cls, raw: bytes) -> Footer:
        """The footer from its bytes and those after it: its length, and Parquet's magic bytes."""
        digest = hashlib.sha256(raw).hexdigest()[:32]
        return cls(pq.read_metadata(pa.BufferReader(raw)), digest, raw)

    def under(self, names: TableNames | None, file: Location) -> Footer:
        """The same footer with its table's names of columns, which the digest then covers too;
        `raw` stays as it lies in the file."""
        named = self.raw if names is None else names.applied(self.raw, file)
        return self if named is self.raw else Footer.of(named)._replace(raw=self.raw)


def footer_of(file: Location, names: TableNames | None = None) -> pq.FileMetaData:
    """The metadata in the footer; raises `DataError` for a file that is not a whole Parquet
    file."""
    return read_footer(file, names).metadata


def read_footer(file: Location, names: TableNames | None = None) -> Footer:
    """The footer and its digest, with the columns under the `names` of its table; raises
    `DataError` for anything but a whole Parquet file."""
    with read_as_parquet(file), opened_bytes(file) as source:
        return footer_in(source, file, names)


def footer_in(source: Any, file: Location, names: TableNames | None) -> Footer:
    """The footer of a file that is open."""
    raw = _try(file, lambda: _tail(source))
    try:
        footer = Footer.of(raw)
    except pa.ArrowNotImplementedError as error:
        raise DataError(f"{file}: {_of_unknown_type(raw)} ({error}). {WITH_OTHERS}") from error
    _check_readable(file, footer)
    return footer.under(names, file)


def opened_bytes(file: Location) -> Any:
    """The opened file, from which bytes can be read at any place."""
    return pa.OSFile(str(file)) if isinstance(file, Path) else file.opened()


def arrow_schema(
    footer: pq.FileMetaData, file: Location, facts: FileFacts | None = None
) -> pa.Schema:
    """The types of a file's columns in its table, including partitions; raises `DataError` if Arrow
    has no such types."""
    try:
        schema = footer.schema.to_arrow_schema()
    except pa.ArrowException as error:
        raise DataError(f"{file}: {UNKNOWN_TYPES} ({error}). {WITH_OTHERS}") from error
    if lacking := lists_left_out(footer, file):
        whole = (one.with_nullable(one.nullable and one.name not in lacking) for one in schema)
        rest = {key: value for key, value in schema.metadata.items() if key != LEFT_OUT}
        schema = pa.schema(whole, rest)
    if facts is None:
        return schema
    known, columns = facts.beside(schema.names).partitions, facts.columns
    if columns is not None:
        facts.check_names(schema.names, file)
        schema = pa.schema([one for one in schema if one.name in columns], schema.metadata)
    for name, value in known.items():
        schema = schema.append(pa.field(name, value.type))
    return schema


def _try(file: Location, work: Callable[[], R]) -> R:
    return work() if isinstance(file, Path) else file.reading(work)


def _tail(source: Any) -> bytes:
    """The footer of an open file, as it lies there, in one read unless it is long."""
    size = source.size()
    end = source.read_at(min(size, TAIL), max(0, size - TAIL))
    if len(end) < 12 or end[-4:] != MAGIC:
        raise ValueError("the magic bytes of Parquet are not at its end")
    length = int.from_bytes(end[-8:-4], "little") + 8
    if length > size:
        raise ValueError(f"its footer would have {length} bytes, of {size} of the file")
    if length > len(end):
        end = source.read_at(length, size - length)
        if len(end) < length:
            raise ValueError("it ends within its footer")
    return bytes(end[-length:])


def _of_unknown_type(raw: bytes) -> str:
    """Which columns have a type that Arrow does not read, in words. It refuses the schema that the
    writer noted beside Parquet's own, in which Int128 of Polars is 16 bytes of no type."""
    try:
        own = pq.read_metadata(
            pa.BufferReader(raw.replace(b"ARROW:schema", b"other:schema"))
        ).schema
    except (pa.ArrowException, OSError):
        return UNKNOWN_TYPES
    columns = [own.column(number) for number in range(len(own))]
    names = [
        repr(one.path)
        for one in columns
        if one.physical_type == "FIXED_LEN_BYTE_ARRAY"
        and one.length == 16
        and one.logical_type.type == "NONE"
    ]
    if not names:
        return UNKNOWN_TYPES
    which = f"column {names[0]}" if len(names) == 1 else f"one of columns {', '.join(names)}"
    return f"{which} has a type that Arrow does not read"


def _check_readable(file: Location, footer: Footer) -> None:
    """Raises `DataError` if columns are encrypted: Arrow would end the process."""
    if len(footer.raw) - 8 - footer.metadata.serialized_size == SIGNED:
        raise DataError(f"{file}: has columns that are encrypted, {NO_KEY}")
