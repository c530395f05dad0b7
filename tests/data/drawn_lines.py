"""The rows of a drawn table as lines of JSON, as far as JSON has such values."""

from __future__ import annotations

import decimal
import json
import math
import re
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from drawn_columns import Value
from drawn_rows import becomes, combined, less_marks
from drawn_table import DrawnTable
from odd_tables import hash_of, holds_null, whole


def as_json_lines(
    table: DrawnTable, path: Path, random: Random | None = None
) -> list[dict[str, Any]]:
    """Write the only file so, as far as JSON has such values; what each row must become. At
    `random` nulls lack their key, keys lie in any order, and whole numbers are as 5.0 or 5e0."""
    (file,), expected, lines = table.files, [], []
    for at in range(file.rows):
        line, row, dropped, parts = {}, {}, False, []
        for column in table.columns:
            if column.role in ("unread", "key"):
                continue
            kind, values = table.values(file, column)
            value = jsonable(values[at])
            if isinstance(value, int) and column.role == "time":
                value = as_unit(value, kind, column.options.get("unit", "ms"))
            nested = pa.list_(pa.int64()) if isinstance(value, list) else pa.int64()
            line[column.name] = value
            if column.role == "part":
                parts.append(hash_of(whole(value)))
            elif column.options.get("nulls") == "drop" and holds_null(less_marks(value, column)):
                dropped = True
            elif not dropped:
                row[column.name] = becomes(column, nested, value)
        if parts:
            row["session_id"] = combined(parts)
        if random is not None and at:  # a key that no line has is an error
            times = {one.name for one in table.columns if one.role == "time"}  # floats are rounded
            line = _written_by_others(line, times, random)
        text = json.dumps(line, ensure_ascii=at % 2 == 0)
        lines.append(MARKED.sub(lambda one: one[1] or one[2], text) if random is not None else text)
        if not dropped:
            expected.append(row)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return expected


MARKED = re.compile(r'"\\u0001([^"]*)"|"\x01([^"]*)"')
"""A number that is written by hand."""


def _written_by_others(
    line: dict[str, Any], as_they_are: set[str], random: Random
) -> dict[str, Any]:
    keys = random.sample([*line], len(line)) if random.random() < 0.5 else [*line]
    return {
        key: line[key] if key in as_they_are else _spelled(line[key], random)
        for key in keys
        if line[key] is not None or random.random() < 0.5
    }


def _spelled(value: Any, random: Random) -> Any:
    """A whole number as another that is equal; one of lists too, and of ids with weights."""
    if isinstance(value, list):
        return [_spelled(one, random) for one in value]
    if isinstance(value, dict):
        return {key: _spelled(one, random) for key, one in value.items()}
    few = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**40
    if few and random.random() < 0.05:
        return "\x01" + random.choice([f"{value}.0", f"{value}e0", f"{value}.0E+0"])
    return value


def as_unit(value: int, kind: pa.DataType, unit: str) -> int:
    """A time as a mere number of a unit."""
    per = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
    if pa.types.is_timestamp(kind):
        return value * per[unit] // per[kind.unit]
    if pa.types.is_date32(kind):
        return value * 86400 * per[unit]
    return value


def jsonable(value: Value) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, decimal.Decimal):
        return int(value) if value == int(value) else float(value)
    if isinstance(value, tuple):
        return {"id": jsonable(value[0]), "weight": value[1]}
    if isinstance(value, list):
        return [jsonable(one) for one in value]
    if isinstance(value, dict):
        return {key: jsonable(one) for key, one in value.items()}
    return value
