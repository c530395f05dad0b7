"""Sampled lines of JSON: the columns that their objects make, and what is odd about keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.values import is_list
from recd_plugins.data.importing.struct_fields import MOST_FIELDS, fields_of, of_fields
from recd_plugins.data.importing.text.json_rows import json_schema, read_json, without_elements
from recd_plugins.data.importing.text.whole_lines import Lines
from recd_plugins.errors import DataError

__all__ = ["JsonKeys", "json_sample"]

MAPPING_KEYS = 16
"""An object with fewer keys than this has fields, even if they are numbered."""
CHANGED = re.compile(r"Column\(([^)]*)\) changed from")
"""What Arrow says of a JSON key with values of several types."""


@dataclass(frozen=True)
class JsonKeys:
    """What lines of JSON say of their keys."""

    nested: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The fields of objects, and where they lie."""
    mixed: dict[str, str] = field(default_factory=dict)
    """The keys that have values of several types, and the place of one that has another type than
    those before it."""
    mappings: dict[str, str] = field(default_factory=dict)
    """The objects whose keys are ids, which differ from line to line, and how they look."""


def json_sample(lines: Lines, keys: JsonKeys) -> pa.Table:
    """Lines of JSON, with the fields of their objects as columns; a key of several types is left
    out."""
    content, before = lines.text, list[str]()
    while True:
        try:
            rows = read_json(content)
            break
        except pa.ArrowInvalid as error:
            changed = CHANGED.search(str(error))
            where, row = lines.where, re.search(r"in row (\d+)", str(error))
            if row is not None:
                where = f"{lines.file.path}:{lines.line_of_row(int(row[1]) + 1)}"
            if changed is None or changed[1] in ("", *before):
                raise DataError(
                    f"{where}: cannot be read as lines of JSON: {error}. Correct the line, or take "
                    "it out."
                ) from None
            before.append(changed[1])
            way = without_elements(changed[1].removeprefix("/").split("/"))
            content, names = _without_key(lines, content, way)
            keys.mixed.update(dict.fromkeys(names, where))
    keys.mappings.update(_mappings(rows))
    fields = fields_of(dict(zip(rows.column_names, rows.schema.types, strict=True)))
    keys.nested.update({name: where for name, where in fields.items() if len(where) > 1})
    rows = _with_unsigned(content, of_fields(rows, fields), fields)
    for at, field_ in enumerate(rows.schema):
        if pa.types.is_timestamp(field_.type):  # in other rows it may have fractions
            rows = rows.set_column(at, field_.name, rows[at].cast(pa.string()))
    return rows


def _mappings(rows: pa.Table) -> Iterator[tuple[str, str]]:
    """The objects with many keys, of which each line has few: by name, with what was found."""
    waiting: list[tuple[tuple[str, ...], pa.ChunkedArray]]
    waiting = [((name,), rows[name]) for name in rows.column_names]
    while waiting:
        where, column = waiting.pop()
        kind = column.type
        if not pa.types.is_struct(kind) or not kind.num_fields:
            continue
        inner = [(one.name, pc.struct_field(column, one.name)) for one in kind]
        numbered = sum(any(map(str.isdigit, name)) for name, _ in inner)
        present = sum(len(one) - one.null_count for _, one in inner)
        a_line = present / max(1, len(column) - column.null_count)
        many = kind.num_fields > MOST_FIELDS or (
            kind.num_fields >= MAPPING_KEYS and numbered >= 0.9 * kind.num_fields
        )
        if many and a_line <= kind.num_fields / 4:
            some = ", ".join(name for name, _ in inner[:3])
            yield ".".join(where), f"as {some}: {kind.num_fields:,} of them, {a_line:.1f} a line"
        else:
            waiting += [((*where, name), one) for name, one in inner]


def _with_unsigned(
    content: pa.Buffer, rows: pa.Table, fields: Mapping[str, tuple[str, ...]]
) -> pa.Table:
    """The columns, with whole numbers beyond int64 as uint64: Arrow takes them for floats, in which
    several would be equal."""
    for at, field_ in enumerate(rows.schema):
        kind = pa.list_(pa.uint64()) if is_list(field_.type) else pa.uint64()
        values = rows[at]
        while is_list(values.type):
            values = pc.list_flatten(values)
        if not pa.types.is_floating(values.type) or (pc.max(values).as_py() or 0) < 2.0**63:
            continue
        where = {field_.name: fields[field_.name]}
        try:
            found = read_json(content, json_schema({field_.name: kind}, where))
        except pa.ArrowInvalid:
            continue  # some have fractions, a sign, or more digits
        rows = rows.set_column(at, field_.name, of_fields(found, where)[0])
    return rows


def _without_key(lines: Lines, content: pa.Buffer, way: str) -> tuple[pa.Buffer, set[str]]:
    """Lines of JSON without the key to which a way leads, in lists too; and what its column is
    called. The way is parted by slashes, which keys may have too."""
    names: set[str] = set()

    def take_out(value: Any, way: str, before: str = "") -> None:
        if isinstance(value, list):
            for one in value:
                take_out(one, way, before)
        elif isinstance(value, dict):
            for key in [*value]:
                if key == way:
                    del value[key]
                    names.add(before + key)
                elif way.startswith(f"{key}/"):
                    take_out(value[key], way[len(key) + 1 :], f"{before}{key}.")

    try:
        each = content.to_pybytes().split(b"\n")
        rows = [json.loads(line) for line in each if line.strip()]
    except ValueError as error:
        raise DataError(f"{lines.where}: a line is not JSON ({error}). Correct it.") from None
    for row in rows:
        take_out(row, way)
    return pa.py_buffer("\n".join(map(json.dumps, rows)).encode()), names
