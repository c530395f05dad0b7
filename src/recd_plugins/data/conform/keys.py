"""Columns of sessions and of times to int64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import (
    are_texts,
    has_missing,
    hashes,
    identifies,
    integers,
    missing,
    plain,
    plain_type,
)
from recd_plugins.data.foreign import DateDigits, TimeUnit
from recd_plugins.data.schema import Fill, Nulls
from recd_plugins.errors import DataError

__all__ = ["date_digits", "session_type_problem", "sessions_of", "time_type_problem", "times_of"]

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
DATE_DIGITS: tuple[DateDigits, ...] = get_args(DateDigits)
DAY_MS = 86_400_000
MOST, LEAST = np.iinfo(np.int64).max, np.iinfo(np.int64).min

CURE = (
    "Say what stands for it under `nulls` of the schema, as `nulls: {%s: drop}` (the row) or "
    "`{%s: {value: 0}}`."
)


def sessions_of(
    arrays: Sequence[pa.Array], nulls: Sequence[Nulls], spots: Sequence[Spot]
) -> pa.Array:
    """One column of integers as it is; texts, and several columns together, by their hash."""
    filled = [_filled(*one) for one in zip(arrays, nulls, spots, strict=True)]
    if len(filled) == 1 and not are_texts(filled[0].type):
        (array,) = filled
        if array.type == pa.int64():
            return array
        # An unsigned one by its bits: two sessions stay two.
        return pa.array(integers(array, spots[0]).view(np.int64), pa.int64())
    from recd_plugins.data.conform.hashing import combine  # numba

    whole = combine([hashes(array, spot) for array, spot in zip(filled, spots, strict=True)])
    return pa.array(whole.view(np.int64), pa.int64())


def times_of(array: pa.Array, unit: TimeUnit, nulls: Nulls, spot: Spot) -> pa.Array:
    """ms since 1970, rounded down; numbers are of `unit`, and of a float to the nearest ms."""
    array = plain(array)
    if array.type == pa.int64() and unit == "ms" and not array.null_count:
        return array
    array = _filled(array, nulls, spot)
    kind = array.type
    if pa.types.is_null(kind):
        return pa.array(np.empty(0, np.int64))
    if unit in DATE_DIGITS and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return _of_digits(integers(array, spot), unit, spot)
    if pa.types.is_floating(kind):
        ms = np.rint(array.cast(pa.float64()).to_numpy() * (1_000 / PER_SECOND[unit]))
        bad = ~(np.abs(ms) < 2.0**63)
        if bad.any():
            raise _too_far(bad, spot)
        return pa.array(ms.astype(np.int64))
    if pa.types.is_timestamp(kind):
        return _scaled(array.cast(pa.int64()).to_numpy(), kind.unit, spot)
    if pa.types.is_date32(kind):
        return pa.array(array.cast(pa.int32()).to_numpy().astype(np.int64) * DAY_MS)
    if pa.types.is_date64(kind):
        return array.cast(pa.int64())
    counts = integers(array, spot)
    if counts.dtype == np.uint64:
        bad = counts > np.uint64(MOST)
        if bad.any():
            raise _too_far(bad, spot)
    return _scaled(counts.view(np.int64), unit, spot)


def date_digits(numbers: pa.Array) -> DateDigits | None:
    """The digits of dates that whole numbers are, if all are dates of 1990 to 2099."""
    for unit in sorted(DATE_DIGITS, key=lambda one: (-one.count("y"), one)):
        try:
            times = times_of(numbers, unit, "error", Spot("", ""))
        except DataError:
            continue
        years = pc.year(times.cast(pa.timestamp("ms")))
        if (
            len(times)
            and pc.all(pc.and_(pc.greater_equal(years, 1990), pc.less(years, 2100))).as_py()
        ):
            return unit
    return None


def session_type_problem(kind: pa.DataType) -> tuple[str, str] | None:
    """The fault of a column of such a type as a session; and the cure."""
    if identifies(kind):
        return None
    return (
        f"is {kind}, but a session is an integer or a text",
        "Name another column under `session_id`, or several, or null.",
    )


def time_type_problem(kind: pa.DataType) -> tuple[str, str] | None:
    """The fault of a column of such a type as a time; and the cure."""
    inner = plain_type(kind)
    fits = (
        pa.types.is_timestamp(inner)
        or pa.types.is_date(inner)
        or pa.types.is_integer(inner)
        or pa.types.is_floating(inner)
        or pa.types.is_decimal(inner)
        or pa.types.is_null(inner)
    )
    if fits:
        return None
    return (
        f"is {kind}, but a time is a timestamp, a date or a number",
        "Make it one where the table is made, or set `timestamp` to null. Texts are read by `recd "
        "data import`, as 2024-05-01, 2024/05/01 13:00:00 or 2024-05-01T13:00:00.5+02:00.",
    )


def _filled(array: pa.Array, nulls: Nulls, spot: Spot) -> pa.Array:
    if not has_missing(array):
        return array
    array = plain(array)
    absent = missing(array)
    if not isinstance(nulls, Fill):
        name = spot.column
        raise spot.error_at(absent, "holds a null or NaN", CURE % (name, name))
    try:
        value = pa.scalar(nulls.value).cast(array.type)
    except pa.ArrowException as error:
        raise spot.error(
            f"is {array.type}, which its value for nulls, {nulls.value!r}, is not ({error})",
            "Mend it under `nulls` of the schema.",
        ) from error
    return pc.if_else(pa.array(absent), value, array)


def _scaled(counts: npt.NDArray[np.int64], unit: str, spot: Spot) -> pa.Array:
    if unit == "s":
        bad = (counts > MOST // 1_000) | (counts < -(MOST // 1_000))
        if bad.any():
            raise _too_far(bad, spot)
        return pa.array(counts * 1_000)
    # numpy rounds down, as a time before 1970 needs it; Arrow's cast rounds towards 1970.
    return pa.array(counts // (PER_SECOND[unit] // 1_000), pa.int64())


def _of_digits(numbers: npt.NDArray[Any], unit: str, spot: Spot) -> pa.Array:
    """ms since 1970 of dates written as digits."""
    year_digits = unit.count("y")
    rest, fields = numbers.astype(np.int64), list[npt.NDArray[np.int64]]()
    for _ in range((len(unit) - year_digits) // 2):
        rest, field = np.divmod(rest, 100)
        fields.insert(0, field)
    fields += [np.zeros_like(rest)] * (5 - len(fields))
    month, day, hour, minute, second = fields
    bad = (rest < 0) | (rest >= 10**year_digits) | (month < 1) | (month > 12)
    years = rest + 2000 * (year_digits == 2)
    months = np.where(bad, 0, 12 * (years - 1970) + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    bad |= (days.astype("datetime64[M]") != months) | (hour > 23) | (minute > 59) | (second > 59)
    if bad.any():
        raise spot.error_at(
            bad,
            f"holds {numbers[bad][0]}, which is no date of `timestamp_unit: {unit}`,",
            "Say another unit, or mend it where the table is made.",
        )
    of_day = 3600 * hour + 60 * minute + second
    return pa.array(days.astype(np.int64) * DAY_MS + 1_000 * of_day)


def _too_far(bad: npt.NDArray[np.bool_], spot: Spot) -> Exception:
    return spot.error_at(
        bad,
        "holds a time that is no int64 in ms",
        "Say what it counts as `timestamp_unit`, or mend it where the table is made.",
    )
