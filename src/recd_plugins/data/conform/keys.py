"""Conversion of sessions and of times to int64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.dates import (
    DATE_DIGITS,
    DAY_MS,
    NOWHERE,
    TEXT_DATES,
    digits_to_ms,
    texts_to_ms,
)
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import (
    are_texts,
    has_missing,
    hashes,
    identifies,
    instants,
    integers,
    is_time,
    missing,
    plain,
    plain_type,
)
from recd_plugins.data.foreign import TimeUnit
from recd_plugins.data.schema import Fill, Nulls
from recd_plugins.errors import DataError

__all__ = [
    "PER_SECOND",
    "are_times",
    "session_type_problem",
    "sessions_of",
    "time_type_problem",
    "times_of",
]

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
MOST, LEAST = np.iinfo(np.int64).max, np.iinfo(np.int64).min

CURE = "Give a value for it under `nulls` of the schema, as `nulls: {%s: {value: %s}}`"
DIGITS = {"yyyy": "1970", "yy": "70", "mmm": "Jan", "mm": "01", "dd": "01", "hh": "00", "ss": "00"}
"""The digits of an example date; `mm` is a month or minutes: 01 is valid as both."""
NUMBER = re.compile(r"-?\d+(\.\d+)?")


def sessions_of(
    arrays: Sequence[pa.Array], nulls: Sequence[Nulls], spots: Sequence[Spot]
) -> pa.Array:
    """[N] int64 sessions: one column of integers as it is, one of times as µs since 1970, and a
    column of texts, or several columns together, by their hash."""
    filled = [_filled(*one) for one in zip(arrays, nulls, spots, strict=True)]
    filled = [instants(one) if is_time(one.type) else one for one in filled]
    if len(filled) == 1 and not are_texts(filled[0].type):
        (array,) = filled
        if array.type == pa.int64():
            return array
        # An unsigned integer is taken by its bits, so different sessions stay different.
        return pa.array(integers(array, spots[0]).view(np.int64), pa.int64())
    from recd_plugins.data.conform.hashing import combine  # numba

    whole = combine([hashes(array, spot) for array, spot in zip(filled, spots, strict=True)])
    return pa.array(whole.view(np.int64), pa.int64())


def times_of(array: pa.Array, unit: TimeUnit, nulls: Nulls, spot: Spot) -> pa.Array:
    """ms since 1970, rounded down; numbers and texts are in `unit`, floats go to the nearest ms."""
    array = plain(array)
    if array.type == pa.int64() and unit == "ms" and not array.null_count:
        return array
    if not has_missing(array):
        return _ms_of(array, unit, spot)
    absent = missing(array)
    if not isinstance(nulls, Fill):
        raise _null_error(absent, spot, _some_time(array.type, unit))
    found = np.full(len(array), _ms_of_value(nulls.value, unit, spot), np.int64)
    left = np.flatnonzero(~absent)
    rows = left + spot.first
    there = spot._replace(first=0, kept=rows if spot.kept is None else spot.kept[rows])
    found[left] = _ms_of(array.take(pa.array(left)), unit, there).to_numpy()
    return pa.array(found)


def _ms_of_value(value: int | float | str, unit: TimeUnit, spot: Spot) -> int:
    """ms since 1970 of the value for nulls: a number in `unit`, or the text of a date.

    It is the same time whatever type the column has in each file.
    """
    text = str(value).strip()
    try:
        if unit not in TEXT_DATES and (not isinstance(value, str) or NUMBER.fullmatch(text)):
            number = Decimal(text)
            counted = int(number) if number % 1 == 0 else float(number)
            times = _ms_of(pa.array([counted]), unit, NOWHERE)
        else:
            try:
                times = texts_to_ms(pa.array([text]), _of_texts(unit), NOWHERE)
            except DataError:
                times = texts_to_ms(pa.array([text]), "yyyy-mm-dd", NOWHERE)
    except (DataError, pa.ArrowException, ArithmeticError) as error:
        raise spot.error(
            f"has {value!r} as its value for nulls, which is neither a number of "
            f"`timestamp_unit: {unit}` nor a date",
            "Correct it under `nulls` of the schema.",
        ) from error
    ms: int = times[0].as_py()
    return ms


def _of_texts(unit: TimeUnit) -> TimeUnit:
    """The date format of texts: `unit`, or that of ISO 8601 if `unit` is for numbers."""
    return unit if unit in TEXT_DATES else "yyyy-mm-dd"


def _ms_of(array: pa.Array, unit: TimeUnit, spot: Spot) -> pa.Array:
    """The times of a plain array without nulls."""
    kind = array.type
    if pa.types.is_null(kind):
        return pa.array(np.empty(0, np.int64))
    if are_texts(kind):
        return texts_to_ms(array, _of_texts(unit), spot)
    if pa.types.is_timestamp(kind):
        return _scaled(array.cast(pa.int64()).to_numpy(), kind.unit, spot)
    if pa.types.is_date32(kind):
        return pa.array(array.cast(pa.int32()).to_numpy().astype(np.int64) * DAY_MS)
    if pa.types.is_date64(kind):
        return array.cast(pa.int64())
    if unit in DATE_DIGITS:
        return digits_to_ms(integers(array, spot), unit, spot)
    if pa.types.is_floating(kind):
        ms = np.rint(array.cast(pa.float64()).to_numpy() * (1_000 / PER_SECOND[unit]))
        bad = ~(np.abs(ms) < 2.0**63)
        if bad.any():
            raise _too_far(bad, spot)
        return pa.array(ms.astype(np.int64))
    counts = integers(array, spot)
    if counts.dtype == np.uint64:
        bad = counts > np.uint64(MOST)
        if bad.any():
            raise _too_far(bad, spot)
    return _scaled(counts.view(np.int64), unit, spot)


def _some_time(kind: pa.DataType, unit: TimeUnit) -> str:
    """An example of a time for a column of this type, in YAML."""
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and unit in TEXT_DATES):
        return '"1970-01-01"'
    if unit in PER_SECOND:
        return "0"
    some = re.sub("y+|mmm|[a-z]{2}", lambda part: DIGITS[part[0]], unit)
    return f'"{some}"' if are_texts(kind) else some


def session_type_problem(kind: pa.DataType) -> tuple[str, str] | None:
    """What is wrong with a column's type for a session, and the cure; or None."""
    if identifies(kind) or is_time(kind):
        return None
    return (
        f"is {kind}, but a session is an integer, a text or a time",
        "Name another column under `session_id`, or several, or null.",
    )


def are_times(kind: pa.DataType) -> bool:
    """Whether values of a type are times by themselves, whatever the unit."""
    inner = plain_type(kind)
    return bool(pa.types.is_timestamp(inner) or pa.types.is_date(inner))


def time_type_problem(kind: pa.DataType, unit: TimeUnit) -> tuple[str, str] | None:
    """What is wrong with a column's type for a time of `unit`, and the cure; or None."""
    inner = plain_type(kind)
    if are_times(inner) or pa.types.is_null(inner):
        return None
    numbers = (
        pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_decimal(inner)
    )
    if numbers and unit in TEXT_DATES:
        return (
            f"is {kind}, but `timestamp_unit: {unit}` is of texts",
            "Set what its numbers count: s, ms, us or ns since 1970, or the digits of a date.",
        )
    if are_texts(inner) and unit not in TEXT_DATES:
        return (
            f"is {kind}, but `timestamp_unit: {unit}` is of numbers",
            "Set the form of the dates in its texts, as `timestamp_unit: yyyy-mm-dd` (ISO 8601), "
            f"or {', '.join(TEXT_DATES[1:])}; or set `timestamp` to null.",
        )
    if numbers or are_texts(inner):
        return None
    return (
        f"is {kind}, but a time is a timestamp, a date, a number or a text",
        "Make it one where the table is made, or set `timestamp` to null.",
    )


def _null_error(absent: npt.NDArray[np.bool_], spot: Spot, some: str) -> Exception:
    """The error for nulls without a value in their place; it shows an example of one."""
    name = spot.column
    drops = f" or `{{{name}: drop}}` (the row)" if spot.drops else ""
    return spot.error_at(absent, "holds a null or NaN", CURE % (name, some) + drops + ".")


def _filled(array: pa.Array, nulls: Nulls, spot: Spot) -> pa.Array:
    """The column with its nulls filled."""
    if not has_missing(array):
        return array
    array = plain(array)
    absent = missing(array)
    if not isinstance(nulls, Fill):
        raise _null_error(absent, spot, "0")
    try:
        array, value = _both_of_a_type(array, nulls.value)
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        raise spot.error(
            f"is {array.type}, which its value for nulls, {nulls.value!r}, is not ({error})",
            "Correct it under `nulls` of the schema.",
        ) from error
    return pc.if_else(pa.array(absent), value, array)


def _both_of_a_type(array: pa.Array, value: int | float | str) -> tuple[pa.Array, pa.Scalar]:
    """The column and the value in one type, which may be wider than the file's integers."""
    if pa.types.is_null(array.type):
        only = pa.scalar(value)
        return pa.nulls(len(array), only.type), only
    if pa.types.is_decimal(array.type):
        return array, pa.scalar(Decimal(str(value)), array.type)
    try:
        return array, pa.scalar(value).cast(array.type)
    except pa.ArrowInvalid:
        if not (pa.types.is_integer(array.type) and isinstance(value, int)):
            raise
        return array.cast(pa.int64()), pa.scalar(value, pa.int64())


def _scaled(counts: npt.NDArray[np.int64], unit: str, spot: Spot) -> pa.Array:
    if unit == "s":
        bad = (counts > MOST // 1_000) | (counts < -(MOST // 1_000))
        if bad.any():
            raise _too_far(bad, spot)
        return pa.array(counts * 1_000)
    # numpy rounds down, which is right for times before 1970; Arrow's cast rounds towards 1970.
    return pa.array(counts // (PER_SECOND[unit] // 1_000), pa.int64())


def _too_far(bad: npt.NDArray[np.bool_], spot: Spot) -> Exception:
    return spot.error_at(
        bad,
        "holds a time that is no int64 in ms",
        "Set `timestamp_unit` to what it counts, or correct it where the table is made.",
    )
