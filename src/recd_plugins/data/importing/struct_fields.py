"""Fields of structs as columns: where each field lies, and how to read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.values import is_list, plain_type

__all__ = [
    "ELEMENTS",
    "MOST_FIELDS",
    "field_at",
    "fields_lacked",
    "fields_of",
    "is_pair",
    "is_variant",
    "of_fields",
    "type_at",
    "undressed",
]

ELEMENTS = "[]"
"""The step from a list to its elements in the path of a field."""
MOST_FIELDS = 64
"""A struct with more fields than this is a mapping with arbitrary keys, not a group of columns."""


def fields_of(columns: Mapping[str, pa.DataType]) -> dict[str, tuple[str, ...]]:
    """The path of each column, root first; a struct becomes a column for each of its fields, such
    as `user.city`.

    The path of a field of a struct within a list has `ELEMENTS` in it, and the column is a list.
    """
    found: dict[str, tuple[str, ...]] = {}
    waiting: list[tuple[tuple[str, ...], pa.DataType]]
    waiting = [((name,), kind) for name, kind in reversed([*columns.items()])]
    while waiting:
        where, kind = waiting.pop()
        if is_list(kind) and not is_pair(kind.value_type):
            inner, within = kind.value_type, (*where, ELEMENTS)
        else:
            inner, within = kind, where
        if (
            pa.types.is_struct(inner)
            and 0 < inner.num_fields <= MOST_FIELDS
            and not is_variant(inner)
        ):
            waiting += [((*within, one.name), one.type) for one in reversed(list(inner))]
            continue
        name = own = ".".join(part for part in where if part != ELEMENTS)
        number = 2
        while own in found or (len(where) > 1 and own in columns):
            own, number = f"{name}_{number}", number + 1
        found[own] = where
    return found


def fields_lacked(
    values: Mapping[str, pa.Scalar], names: Collection[str], nested: Mapping[str, tuple[str, ...]]
) -> dict[str, pa.Scalar]:
    """The columns with one value (`values`) that a file with columns `names` and paths `nested`
    lacks; a null struct stands for nulls in all of its fields.

    A field is left out if the file has other fields of the same list of structs: the field came
    later, and one null cannot stand for as many elements as that list has.
    """
    lacked = {name: one.type for name, one in values.items() if name not in names}
    found = {}
    for name, where in fields_of(lacked).items():
        lists = where[: where.index(ELEMENTS) + 1] if ELEMENTS in where else where
        if name in names or any(one[: len(lists)] == lists for one in nested.values()):
            continue
        value = values[where[0]]
        found[name] = value if len(where) == 1 else pa.scalar(None, type_at(value.type, where))
    return found


def of_fields(rows: pa.Table, fields: Mapping[str, tuple[str, ...]]) -> pa.Table:
    """A table with a column of plain values for each field."""
    return pa.table(
        {name: undressed(field_at(rows[where[0]], where)) for name, where in fields.items()}
    )


def undressed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with dictionaries and extension types removed from values or list elements."""
    if isinstance(column.type, pa.BaseExtensionType):
        kind = column.type.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind)
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    elif is_list(kind) and plain_type(kind.value_type) != kind.value_type:
        plain = kind.value_field.with_type(plain_type(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            column = column.cast(pa.list_(plain, kind.list_size))
        else:
            large = pa.types.is_large_list(kind)
            column = column.cast(pa.large_list(plain) if large else pa.list_(plain))
    return column


def is_pair(kind: pa.DataType) -> bool:
    """Whether a type is a struct that may be an id with its weight."""
    if not pa.types.is_struct(kind) or kind.num_fields != 2:
        return False
    weight = kind.field(1).type
    return bool(
        pa.types.is_integer(weight) or pa.types.is_floating(weight) or pa.types.is_decimal(weight)
    )


def is_variant(kind: pa.DataType) -> bool:
    """Whether a type is a variant: a struct of the bytes of any value and of their meaning."""
    if not pa.types.is_struct(kind):
        return False
    names = {one.name for one in kind}
    parts = {"metadata", "value"}
    return parts <= names <= {*parts, "typed_value"} and all(
        pa.types.is_binary(kind.field(one).type) for one in parts
    )


def field_at(root: pa.Array | pa.ChunkedArray, where: Sequence[str]) -> Any:
    """The field of a column of structs; null where a struct around it is null."""
    if isinstance(root, pa.ChunkedArray) and ELEMENTS in where:
        chunks = root.chunks or [pa.array([], root.type)]
        return pa.chunked_array([field_at(chunk, where) for chunk in chunks])
    for number, part in enumerate(where[1:], 1):
        if part == ELEMENTS:
            lengths = pc.fill_null(pc.list_value_length(root), 0).cast(pa.int32())
            offsets = pa.array([0], pa.int32())
            if len(root):
                offsets = pa.concat_arrays([offsets, pc.cumulative_sum(lengths)])
            inner = field_at(root.flatten(), where[number:])
            return pa.ListArray.from_arrays(offsets, inner, mask=root.is_null())
        # By index, since Arrow takes a name that begins with a dot or a bracket for a path.
        root = pc.struct_field(root, [root.type.get_field_index(part)])
    return root


def type_at(root: pa.DataType, where: Sequence[str]) -> pa.DataType:
    """The type of `field_at`."""
    for number, part in enumerate(where[1:], 1):
        if part == ELEMENTS:
            return pa.list_(type_at(root.value_type, where[number:]))
        root = root.field(part).type
    return root
