"""Conversion of an expression's literals to the types of their columns."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

from recd_plugins.data.conform.keys import PER_SECOND

__all__ = [
    "Literal",
    "NotComparable",
    "as_bound",
    "beside",
    "comparable",
    "literal_in",
    "moment",
    "value_type",
]

Literal = int | float | str | bool | datetime.datetime

UTC = datetime.UTC


class NotComparable(ValueError):
    """A column and a literal cannot be compared."""


def literal_in(value: Literal, kind: pa.DataType, unit: str | None, column: str) -> pa.Scalar:
    """The literal in the column's type; for an integer column it may be a float."""
    types = pa.types
    if types.is_boolean(kind) and isinstance(value, bool):
        return pa.scalar(value)
    if isinstance(value, str) and (
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    ):  # even if the column is a time, stored as text
        return pa.scalar(value, kind)
    if isinstance(value, str) and (types.is_timestamp(kind) or types.is_date(kind) or unit):
        try:
            value = moment(value)
        except ValueError as error:
            raise NotComparable(f"{error}.") from error
    if isinstance(value, datetime.datetime):
        return _time(value, kind, unit, column)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if types.is_integer(kind):
            return _beside_integers(value, kind)
        if types.is_floating(kind) or types.is_decimal(kind):
            return pa.scalar(str(value) if types.is_decimal(kind) else float(value)).cast(kind)
    raise NotComparable(_why_not(value, kind, column))


def _beside_integers(value: int | float, kind: pa.DataType) -> pa.Scalar:
    """A number in the type of the integers that it is compared with, or as a float if they cannot
    hold it: a fraction, one out of their range, or one below 0 if they are unsigned."""
    unsigned = kind == pa.uint64()
    low, high = (0, 2**64) if unsigned else (-(2**63), 2**63)
    is_one = isinstance(value, int) or (value.is_integer() and low <= value < high)
    if not is_one or (unsigned and value < 0):
        return pa.scalar(float(value))
    return pa.scalar(int(value), pa.uint64() if unsigned else pa.int64())


def _why_not(value: Literal, kind: pa.DataType, column: str) -> str:
    if pa.types.is_nested(kind):
        return f"column {column!r} is {kind}: lists compare with nothing. Ask for another column."
    if value is True:
        return f"column {column!r} is {kind}: compare it with a value, as {column} == 1."
    what = {
        bool: "true or false",
        str: "a text",
        datetime.datetime: "a date",
        int: "a number",
        float: "a number",
    }[type(value)]
    return (
        f"column {column!r} is {kind}, which does not compare with {what}. Write a value of its "
        "type, or name another column."
    )


def _time(value: datetime.datetime, kind: pa.DataType, unit: str | None, column: str) -> pa.Scalar:
    types = pa.types
    if types.is_timestamp(kind):
        zone = value if kind.tz is not None else value.replace(tzinfo=None)
        return pa.scalar(zone, pa.timestamp("us", kind.tz)).cast(kind)
    if types.is_date(kind):
        if value.time() != datetime.time():
            raise NotComparable(f"column {column!r} holds dates: compare it with one.")
        return pa.scalar(value.date(), kind)
    if types.is_integer(kind) and unit is not None:
        if unit not in PER_SECOND:  # the digits of a date
            return _beside_integers(_digits(value.astimezone(UTC), unit), kind)
        since = value - datetime.datetime(1970, 1, 1, tzinfo=UTC)
        micros = since // datetime.timedelta(microseconds=1)
        counted, within = divmod(micros * PER_SECOND[unit], 1_000_000)
        return _beside_integers(counted + 0.5 if within else counted, kind)
    raise NotComparable(
        f"column {column!r} is {kind}, which does not compare with a date: that does a date, a "
        "timestamp, and the number that the schema names as the time."
    )


def _digits(time: datetime.datetime, unit: str) -> int | float:
    """A time as the digits of a date in `unit`, plus one half if the time is later than that date's
    start, so that it compares correctly with whole dates.

    With two digits for the year, a time of 1999 is below 2000, and one of 2100 is above 2099.
    """
    years = unit.count("y")
    found = time.year - (2_000 if years == 2 else 0)
    parts = (time.month, time.day, time.hour, time.minute, time.second)
    count = (len(unit) - years) // 2
    for part in parts[:count]:
        found = 100 * found + part
    within = any((*parts[count:], time.microsecond))
    return found + 0.5 if within else found


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type to which values are cast for comparison: Arrow cannot compare every type."""
    kind, types = (kind.value_type if pa.types.is_dictionary(kind) else kind), pa.types
    if types.is_float16(kind):
        return pa.float32()
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_decimal32(kind) or types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, cast to the type in which its values are compared."""
    kind = value_type(column.type)
    return column if kind == column.type else column.cast(kind)


def beside(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Integers, cast to the type of a literal.

    Arrow by itself refuses integers that no float equals, although the nearest float compares with
    a fraction in the same way.
    """
    if not pa.types.is_integer(column.type) or column.type == kind:
        return column
    return column.cast(kind, safe=not pa.types.is_floating(kind))


def as_bound(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """A bound in the type of the literal; None if that type cannot hold it."""
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None


def moment(text: str) -> datetime.datetime:
    """The time that a text says; a date is its midnight, and UTC applies if there is no zone."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no date: write 2024-05-01 or 2024-05-01T10:00:00") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
