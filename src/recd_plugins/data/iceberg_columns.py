"""Which columns of an Iceberg table a file has: Iceberg knows them by number, whatever they are
called.

A file may have an older name for a column, or a column that was dropped, whose name another one has
now. Both are refused, not read wrongly. A column that a file lacks has the value that the table
says: that of the file's partition, the default of the rows from before it came, or null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import pyarrow as pa

from recd_plugins.data.conform.values import is_list
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["REWRITE", "IcebergColumns"]

REWRITE = (
    "Write its files anew: CALL system.rewrite_data_files(table => 'TABLE', options => "
    "map('rewrite-all', 'true'))"
)
"""What has Spark write all files of a table; without the option it writes those of odd sizes."""


class IcebergColumns:
    """The columns of a table, by a schema of pyiceberg and what names mean in files without
    numbers."""

    def __init__(self, schema: Any, mapping: Any) -> None:
        from pyiceberg.schema import index_name_by_id

        self._schema = schema
        self._names: Mapping[int, str] = index_name_by_id(schema)
        self._mapping = list(mapping or ())
        self.roots = frozenset(field.name for field in schema.fields)
        """The columns, without the fields within them."""

    def lacked(
        self, arrow: pa.Schema, partition: Mapping[int, Any], file: Location
    ) -> dict[str, pa.Scalar]:
        """The columns that a file lacks, each with the value that it has in all of the file's rows;
        `partition` has those of its partition, by number. `DataError` for a file whose names are
        not those of the table."""
        numbers = {}
        for path, number in _numbered(((one.name, one) for one in arrow), self._mapping):
            if number is not None:
                numbers[number] = path
                self._check_name(path, number, file)
        if not numbers:
            return {}  # what such a file lacks it may have under another name
        self._check_defaults(numbers, file)
        found = {}
        for field in self._schema.fields:
            number, value = field.field_id, field.initial_default
            if number in numbers:
                value = None  # for fields of it that came later
                given = not field.field_type.is_primitive
            else:
                value = partition.get(number, value)
                given = number in partition or value is not None or not field.required
            if given:
                with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
                    found[field.name] = _scalar(value, field.field_type)
        return found

    def _check_name(self, path: str, number: int, file: Location) -> None:
        now = self._names.get(number)
        if now is None and path in self._names.values():
            raise DataError(
                f"{file}: has column {path!r} of before it was dropped and made anew, which is "
                f"not read. {REWRITE}."
            )
        if now is None or now == path:
            return
        if _as_written(now) == path:
            raise DataError(
                f"{file}: has column {now!r} as {path!r}, for names in files of Iceberg have "
                "letters, digits and _ alone. It is not read by another name than the table's: "
                f"rename it there first. {REWRITE}."
            )
        raise DataError(
            f"{file}: has column {now!r} under its name of before, {path!r}, which is not read. "
            f"{REWRITE}."
        )

    def _check_defaults(self, numbers: Mapping[int, str], file: Location) -> None:
        """A field of a struct that the file has has no column of its own, which a default could
        fill."""
        there = {path.split(".")[0] for path in numbers.values()}
        top = {field.field_id for field in self._schema.fields}
        for number, path in self._names.items():
            if number in numbers or number in top or path.split(".")[0] not in there:
                continue
            if self._schema.find_field(number).initial_default is not None:
                raise DataError(
                    f"{file}: lacks field {path!r} of a struct, which has an initial-default for "
                    f"such files. That is not read. {REWRITE}."
                )


def _numbered(
    fields: Iterable[tuple[str, pa.Field]], mapping: Sequence[Any], before: str = ""
) -> Iterator[tuple[str, int | None]]:
    """The columns and the fields within them, each by its path as Iceberg has it, with its
    number."""
    for name, field in fields:
        known = next((one for one in mapping if name in one.names), None)
        own = (field.metadata or {}).get(b"PARQUET:field_id")
        mapped = None if known is None else known.field_id
        yield before + name, mapped if own is None else int(own)
        kind, inner = field.type, list[tuple[str, pa.Field]]()
        if pa.types.is_struct(kind):
            inner = [(one.name, one) for one in kind]
        elif pa.types.is_map(kind):
            inner = [("key", kind.key_field), ("value", kind.item_field)]
        elif is_list(kind):
            inner = [("element", kind.value_field)]
        yield from _numbered(inner, () if known is None else known.fields, f"{before}{name}.")


def _as_written(path: str) -> str:
    """The name that Iceberg gives a column in a file, for names that Avro does not have."""
    from pyiceberg.schema import make_compatible_name

    return ".".join(make_compatible_name(part) for part in path.split(".") if part)


def _scalar(value: Any, kind: Any) -> pa.Scalar:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    plain = value.bytes if isinstance(value, UUID) else value
    return pa.scalar(plain, _as_read(schema_to_pyarrow(kind, include_field_ids=False)))


def _as_read(kind: pa.DataType) -> pa.DataType:
    """The type as which Arrow reads such a column of another file: pyiceberg makes all texts and
    lists large ones."""
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return pa.string() if pa.types.is_large_string(kind) else pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_as_read(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(_as_read(kind.key_type), _as_read(kind.item_type))
    if is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_read(kind.value_type)))
    return kind
