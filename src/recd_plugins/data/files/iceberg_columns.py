"""Which columns of an Iceberg table a file has: Iceberg identifies them by number, whatever their
names.

A file may have an older name for a column, or a dropped column whose name another one has now:
`names` resolves both. A column that a file lacks has the value that the table gives it: that of the
file's partition, the default for rows written before the column was added, or null.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import pyarrow as pa

from recd_plugins.data.conform.values import is_list
from recd_plugins.data.parquet.table_names import Kind, TableColumn, TableNames
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["REWRITE", "IcebergColumns"]

REWRITE = (
    "Write its files again: CALL system.rewrite_data_files(table => 'TABLE', options => "
    "map('rewrite-all', 'true'))"
)
"""This call makes Spark rewrite all files of a table; without the option it rewrites only those of
unsuitable sizes."""


class IcebergColumns:
    """The columns of a table, by its schema of pyiceberg, all schemas that it has had, and what
    names mean in files without numbers, if the table says so."""

    def __init__(self, schema: Any, before: Iterable[Any], mapping: Any) -> None:
        from pyiceberg.schema import index_name_by_id

        self._schema = schema
        self._schemas = [schema, *before]
        self._mapped = mapping is not None
        paths: Mapping[int, str] = index_name_by_id(schema)
        self._paths = frozenset(paths.values())
        top = {one.field_id: one.name for one in schema.fields}
        self._later = [
            (next(one for one in top.values() if path.startswith(f"{one}.")), path)
            for number, path in paths.items()
            if number not in top and schema.find_field(number).initial_default is not None
        ]
        """Fields of structs that have a default, each with its column before it."""
        stored = dict(_mapped_names(mapping or ()))
        self.names = TableNames(
            columns=tuple(
                _column(one.name, one.field_id, one.field_type, stored if self._mapped else None)
                for one in schema.fields
            ),
            numbers=True,
            names="always" if self._mapped else "without numbers",
            cure=REWRITE,
        )
        self.roots = frozenset(field.name for field in schema.fields)
        """The columns, without nested fields."""

    def lacked(
        self, arrow: pa.Schema, partition: Mapping[int, Any], file: Location
    ) -> dict[str, pa.Scalar]:
        """The columns that a file lacks, each with its value in all of the file's rows. `arrow` has
        the file's columns under the names of `names`, and `partition` the values of its partition,
        by number. Raises `DataError` for a file whose columns cannot be identified."""
        there, numbered = set[str](), False
        for path, one in _paths((one.name, one) for one in arrow):
            there.add(path)
            numbered = numbered or b"PARQUET:field_id" in (one.metadata or {})
        if not numbered and not self._mapped:
            self._check_clear(there, file)
            return {}  # such a file may have what it seems to lack under another name
        self._check_defaults(there, file)
        found = {}
        for field in self._schema.fields:
            number, value = field.field_id, field.initial_default
            if field.name in there:
                value = None  # for fields of it that were added later
                given = not field.field_type.is_primitive
            else:
                value = partition.get(number, value)
                given = number in partition or value is not None or not field.required
            if given:
                with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
                    found[field.name] = _scalar(value, field.field_type)
        return found

    def _check_clear(self, there: set[str], file: Location) -> None:
        """Raises `DataError` for a file without numbers if its names do not identify its columns:
        the table says nothing of such files, and a name has meant two columns."""
        for path in sorted(there & self._paths & _several(self._schemas)):
            raise DataError(
                f"{file}: has no numbers of columns (field_id), and {path!r} has been the name of "
                "more than one column of its table: nothing says which one it is. Set the table's "
                f"property schema.name-mapping.default. Or {REWRITE[0].lower()}{REWRITE[1:]}."
            )

    def _check_defaults(self, there: set[str], file: Location) -> None:
        """Raises `DataError` for a missing field with a default, in a struct that the file has:
        such a field is no column that could be filled."""
        for root, path in self._later:
            if root in there and path not in there:
                raise DataError(
                    f"{file}: lacks field {path!r} of a struct, which has an initial-default for "
                    f"such files. That is not read. {REWRITE}."
                )


def _several(schemas: Iterable[Any]) -> frozenset[str]:
    """The names that have meant more than one column."""
    from pyiceberg.schema import index_name_by_id

    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for schema in schemas:
        for number, path in index_name_by_id(schema).items():
            numbers[path].add(number)
    return frozenset(path for path, known in numbers.items() if len(known) > 1)


def _mapped_names(mapping: Iterable[Any]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The number of each column, and its names in files without numbers."""
    for one in mapping:
        if one.field_id is not None:
            yield one.field_id, tuple(one.names)
        yield from _mapped_names(one.fields)


def _column(
    name: str, number: int, kind: Any, stored: Mapping[int, tuple[str, ...]] | None
) -> TableColumn:
    """A column; if no names are `stored`, it has its own name in files without numbers."""
    from pyiceberg.types import ListType, MapType, StructType

    kinds: Mapping[type, Kind] = {StructType: "struct", ListType: "list", MapType: "map"}
    parts: Sequence[tuple[str, int, Any]] = ()
    if isinstance(kind, StructType):
        parts = [(one.name, one.field_id, one.field_type) for one in kind.fields]
    elif isinstance(kind, ListType):
        parts = [("element", kind.element_id, kind.element_type)]
    elif isinstance(kind, MapType):
        parts = [
            ("key", kind.key_id, kind.key_type),
            ("value", kind.value_id, kind.value_type),
        ]
    return TableColumn(
        name=name,
        number=number,
        stored=(name,) if stored is None else stored.get(number, ()),
        kind=kinds.get(type(kind), "values"),
        within=tuple(_column(*part, stored) for part in parts),
    )


def _paths(
    fields: Iterable[tuple[str, pa.Field]], before: str = ""
) -> Iterator[tuple[str, pa.Field]]:
    """The columns and the fields within them, each with its path in Iceberg's form."""
    for name, field in fields:
        yield before + name, field
        kind, inner = field.type, list[tuple[str, pa.Field]]()
        if pa.types.is_struct(kind):
            inner = [(one.name, one) for one in kind]
        elif pa.types.is_map(kind):
            inner = [("key", kind.key_field), ("value", kind.item_field)]
        elif is_list(kind):
            inner = [("element", kind.value_field)]
        yield from _paths(inner, f"{before}{name}.")


def _scalar(value: Any, kind: Any) -> pa.Scalar:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    plain = value.bytes if isinstance(value, UUID) else value
    return pa.scalar(plain, _as_read(schema_to_pyarrow(kind, include_field_ids=False)))


def _as_read(kind: pa.DataType) -> pa.DataType:
    """The type with which Arrow reads such a column of another file: pyiceberg makes all texts and
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
