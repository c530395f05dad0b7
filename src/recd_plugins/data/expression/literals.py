"""A literal of an expression as a value in the type of its column."""

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
    """A column and a literal that do not compare."""


def literal_in(value: Literal, kind: pa.DataType, unit: str | None, column: str) -> pa.Scalar:
    """The literal in the column's type; of an integer it may be a float."""
    types = pa.types
    if types.is_boolean(kind) and isinstance(value, bool):
        return pa.scalar(value)
    if isinstance(value, str) and (
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    ):  # of a time, too, that is text
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
    """A number as one of the integers that it is compared with, or as a float where none is it: a
    fraction, one without bounds, and below 0 where they have no sign."""
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
    return f"column {column!r} is {kind}, which does not compare with {what}."


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
    """The digits of the date of `unit` in which a time lies; one half more of a time within it, as
    it compares with whole ones. Of two digits for the year 1999 is below 2000, and 2100 above."""
    years = unit.count("y")
    found = time.year - (2_000 if years == 2 else 0)
    parts = (time.month, time.day, time.hour, time.minute, time.second)
    count = (len(unit) - years) // 2
    for part in parts[:count]:
        found = 100 * found + part
    within = any((*parts[count:], time.microsecond))
    return found + 0.5 if within else found


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type as which values of a type compare: Arrow does not compare each as it is."""
    kind, types = (kind.value_type if pa.types.is_dictionary(kind) else kind), pa.types
    if types.is_float16(kind):
        return pa.float32()
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_decimal32(kind) or types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in the type as which its values compare."""
    kind = value_type(column.type)
    return column if kind == column.type else column.cast(kind)


def beside(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Integers in the type of a literal: Arrow itself refuses those that are no float, though each
    is as far from a fraction as the nearest one."""
    if not pa.types.is_integer(column.type) or column.type == kind:
        return column
    return column.cast(kind, safe=not pa.types.is_floating(kind))


def as_bound(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """A bound in the type of the literal; None where it has none such."""
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None


def moment(text: str) -> datetime.datetime:
    """A date is its midnight; without a zone it is of UTC."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no date: write 2024-05-01 or 2024-05-01T10:00:00") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
