"""The rows of lines of JSON, with the fields of their objects as columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from recd_plugins.data.importing.column_types import MEND, ColumnTypes, Misfit
from recd_plugins.data.importing.struct_fields import ELEMENTS, field_at
from recd_plugins.data.importing.text.text_lists import with_lists
from recd_plugins.data.importing.text.whole_lines import Lines
from recd_plugins.errors import DataError

__all__ = ["json_rows", "json_schema", "read_json", "without_elements"]


FIRST_IS_NULL = re.compile(rb"\s*null")


def json_rows(lines: Lines, columns: Sequence[str], read_as: ColumnTypes) -> pa.Table:
    """The named columns of the lines, in this order."""
    wheres = {name: read_as.nested.get(name, (name,)) for name in columns}
    types = {name: read_as.types.get(name, pa.string()) for name in columns}
    # Arrow reads texts as times if they have neither fractions of seconds nor a zone.
    times = {name: kind for name, kind in types.items() if pa.types.is_timestamp(kind)}
    texts = dict.fromkeys((*read_as.parted, *times), pa.string())
    content = lines.text
    types_read = {**types, **texts}
    try:
        found = read_json(content, json_schema(types_read, wheres))
    except pa.ArrowInvalid as error:
        message = str(error)
        at = re.search(r"in row (\d+)", message)
        where = lines.where
        if at:
            where = f"{lines.file.path}:{lines.line_of_row(int(at[1]) + 1)}"
        path = re.search(r"Column\(/?([^)]+)\)", message)
        reason = f"{where}: {message}. Correct this line, or take it out."
        if path is None:
            suspects = () if message.startswith("JSON parse error") else wheres.items()
            for name, one in suspects:
                try:
                    read_json(content, json_schema(types_read, {name: one}))
                except pa.ArrowInvalid:
                    raise Misfit(
                        f"{lines.where}: column {name!r}: {message}. {MEND}", name
                    ) from None
            raise DataError(reason) from None
        raise Misfit(reason, _column_at(path[1], wheres)) from None
    made = {name: field_at(found[where[0]], where) for name, where in wheres.items()}
    try:
        pa.table(made).validate(full=True)
    except pa.ArrowInvalid:  # the reader does not check that texts are UTF-8
        lines.check_encoding()
        raise
    for name, kind in times.items():
        try:
            made[name] = _moments(made[name], kind)
        except pa.ArrowInvalid as error:
            raise Misfit(f"{lines.where}: column {name!r}: {error}. {MEND}", name) from None
    return with_lists(pa.table(made), lines.where, columns, read_as)


def _column_at(way: str, wheres: Mapping[str, tuple[str, ...]]) -> str:
    """The column to which Arrow's path leads, or the key that it begins with. The path is separated
    by slashes, which keys may also have."""
    way = without_elements(way.split("/"))
    for name, where in wheres.items():
        if without_elements(where) == way:
            return name
    roots = [where[0] for where in wheres.values() if f"{way}/".startswith(f"{where[0]}/")]
    return max(roots, key=len, default=way.partition("/")[0])


def without_elements(path: Sequence[str]) -> str:
    """The path to a field, separated by slashes, without its steps into lists."""
    return "/".join(part for part in path if part != ELEMENTS)


def read_json(content: pa.Buffer, schema: pa.Schema | None = None) -> pa.Table:
    """Objects in lines: only the keys of a schema, or all, with the types of their values."""
    found = _as_arrow_reads(content, schema)
    try:
        found.validate()
    except pa.ArrowInvalid:
        # Where the first list of a key begins with nulls, Arrow 26 forgets these as it finds out
        # the type. It does not where it is told the type, unless that is of nulls alone.
        typed = [pa.field(one.name, _with_values(one.type)) for one in found.schema]
        again = _as_arrow_reads(content, pa.schema(typed))
        for at, one in enumerate(found.schema):
            if one.type == pa.list_(pa.null()):
                again = again.set_column(at, one.name, _of_nulls(again[at].combine_chunks()))
        return again
    return found


def _as_arrow_reads(content: pa.Buffer, schema: pa.Schema | None) -> pa.Table:
    others = "infer" if schema is None else "ignore"
    if FIRST_IS_NULL.match(memoryview(content)):
        # Arrow 26 ends the process there. An empty object is as long, and a row of nulls as well.
        content = pa.py_buffer(content.to_pybytes().replace(b"null", b"{}  ", 1))
    return pa.json.read_json(
        pa.BufferReader(content),
        pa.json.ReadOptions(block_size=content.size + 1, use_threads=False),
        pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
    )


def _of_nulls(lists: pa.ListArray) -> pa.ListArray:
    """Lists of the same lengths, of nulls without a type."""
    nulls = pa.nulls(len(lists.flatten()))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = pa.array(np.concatenate([[0], lengths.cumsum()]), pa.int32())
    return pa.ListArray.from_arrays(ends, nulls, mask=lists.is_null())


def _with_values(kind: pa.DataType) -> pa.DataType:
    """The type, but with texts where lists hold only nulls."""
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_with_values(one.type)) for one in kind])
    if not pa.types.is_list(kind):
        return kind
    inner = kind.value_type
    return pa.list_(pa.string() if pa.types.is_null(inner) else _with_values(inner))


def _moments(texts: pa.ChunkedArray, kind: pa.TimestampType) -> pa.ChunkedArray:
    """Texts of ISO 8601, with a zone or in UTC, as times."""
    try:
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)
    except pa.ArrowInvalid:
        if pc.any(pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$")).as_py():
            return texts.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
        raise


def json_schema(
    types: Mapping[str, pa.DataType], wheres: Mapping[str, tuple[str, ...]]
) -> pa.Schema:
    """The schema of objects that have columns of these types, by the path to each."""
    kinds = {where: _element(types[name], where.count(ELEMENTS)) for name, where in wheres.items()}
    return pa.schema(_fields(kinds))


def _element(kind: pa.DataType, depth: int) -> pa.DataType:
    """The type of the elements of nested lists, this many levels deep."""
    return _element(kind.value_type, depth - 1) if depth and pa.types.is_list(kind) else kind


def _fields(kinds: Mapping[tuple[str, ...], pa.DataType]) -> list[pa.Field]:
    """The fields of objects, by where they lie."""
    made: dict[str, pa.DataType] = {}
    for root in dict.fromkeys(where[0] for where in kinds):
        below = {where[1:]: kind for where, kind in kinds.items() if where[0] == root}
        made[root] = _whole(below)
    return [pa.field(name, kind) for name, kind in made.items()]


def _whole(below: Mapping[tuple[str, ...], pa.DataType]) -> pa.DataType:
    """The type of what has these fields below it."""
    if () in below:
        return below[()]
    if all(where[0] == ELEMENTS for where in below):
        return pa.list_(_whole({where[1:]: kind for where, kind in below.items()}))
    return pa.struct(_fields(below))
