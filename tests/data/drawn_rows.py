"""What one value of a drawn column becomes: by `odd_tables`, in plain Python, one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from drawn_columns import Column, Value
from odd_tables import MASK, ROLES, float32, hash_of, holds_null, signed, whole


def less_marks(value: Value, column: Column) -> Value:
    """The value with nulls where it is what stands for one."""
    marks = column.options.get("missing")
    if not marks:
        return value

    def lacking(one: Value) -> bool:
        return any(alike_mark(one, mark) for mark in marks)

    if isinstance(value, list):
        return [None if lacking(one) else one for one in value]
    return None if lacking(value) else value


def combined(parts: list[int]) -> int:
    """The session of several columns, of the hash of each: h = XXH64(h) ^ part."""
    one, *others = parts
    for part in others:
        one = hash_of(one) ^ part
    return signed(one)


def in_share(session: int, share: float) -> bool:
    """Whether `sessions_share` takes a session: by MurmurHash3's finalizer."""
    number = session & MASK
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        number = (number ^ (number >> 33)) * factor & MASK
    return number ^ (number >> 33) < int(share * 2**64)


def alike_mark(value: Value, mark: int | str) -> bool:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    if isinstance(value, bytes):
        return value == str(mark).encode()
    if isinstance(value, str):
        return value == str(mark)
    return isinstance(mark, int) and value == mark


def becomes(column: Column, kind: pa.DataType, value: Value) -> Any:
    """What a reader must make of a value: ids (with weights), a float or floats, an int64."""
    value, case = less_marks(value, column), column.odd(kind)
    if column.role in ("feature", "number"):
        if column.options.get("ids") == "vocabulary":
            return vocabulary_ids(value, column)
        made = ROLES["feature"](value, case)
        if isinstance(made, dict):
            return list(zip(made["odd"], made["odd_weights"], strict=True))
        return made
    made = ROLES[column.role](value, case)
    if column.options.get("scale") == "log":
        # float32 first, then its logarithm, as a column of that type has it.
        many = made if isinstance(made, list) else [made]
        logs = [math.copysign(math.log1p(abs(one)), one) for one in many]
        return [float32(one) for one in logs] if isinstance(made, list) else float32(logs[0])
    return next(iter(made.values())) if isinstance(made, dict) else made


def vocabulary_ids(value: Value, column: Column) -> list[int]:
    """By place in the file; the others by their hash."""
    known, others = column.options["known"], column.options["others"]
    nulls = column.options.get("nulls", "empty")
    values = value if isinstance(value, list) else [value]
    if isinstance(nulls, dict):
        values = [nulls["value"] if holds_null(one) else one for one in values]
    places = {text.encode(): others + place for place, text in enumerate(known)}
    found = []
    for one in (one for one in values if not holds_null(one)):
        as_one = whole(one)
        text = as_one if isinstance(as_one, bytes) else str(as_one).encode()
        found.append(places[text] if text in places else hash_of(as_one) % others)
    return found


def stepped(step: dict[str, Any], value: Any) -> Any:
    """What a transform makes of a row's ids, of ids with weights, or of a number."""
    use = step["use"]
    if use == "clamp_dense":
        return float32(min(max(value, step["low"]), step["high"]))
    if use == "first_x":
        return value[: step["n"]]
    each: dict[str, Callable[[int], int]] = {
        "clamp": lambda one: min(max(one, step["low"]), step["high"]),
        "positive_modulus": lambda one: one % step["modulo"],
        "map_id": lambda one: step["ids"].get(one, step["other"]),
    }
    change = each[use]
    return [(change(one[0]), one[1]) if isinstance(one, tuple) else change(one) for one in value]
