"""Which column is the time and in which unit, and which other columns are times or dates."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from recd_plugins.data.conform.dates import date_digits
from recd_plugins.data.importing.proposing.column_entry import ColumnEntry
from recd_plugins.data.importing.proposing.column_names import (
    ID_WORDS,
    TIME_WORDS,
    is_called,
    is_duration,
    words_of,
)
from recd_plugins.data.importing.surveying.column_survey import ColumnSurvey

__all__ = ["are_times", "is_date", "is_since", "time_among", "time_entry"]

UNITS = ((1e8, 2e10, "s"), (1e11, 2e13, "ms"), (1e14, 2e16, "us"), (1e17, 9.3e18, "ns"))
"""For each unit, which numbers are taken for times since 1970: from about 1973 to 2600."""
SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
SINCE, UNTIL = 6.3e8, 4.1e9
"""The years 1990 and 2100 in seconds since 1970."""


def unit_of(column: ColumnSurvey) -> str | None:
    """The time unit of a column of numbers or texts; None if it is not a time."""
    if column.seems == "times":
        return "ms"
    if column.dates:
        return column.dates[0]
    if not column.is_number or column.low is None or column.two_valued:
        return None
    return next((unit for low, high, unit in UNITS if low <= column.high < high), None)


def time_among(columns: Sequence[ColumnSurvey]) -> ColumnSurvey | None:
    """The column of the time, by type, by name and range, or only by name; or None."""
    typed = [one for one in columns if (one.seems == "times" and not one.is_list) or one.dates]
    named = [
        one
        for one in columns
        if is_called(one, TIME_WORDS)
        and one.is_number
        and one.distinct > 2
        and not is_duration(one)
    ]
    ranged = [one for one in named if unit_of(one)]
    since = [one for one in columns if is_since(one)]
    named_so = [*(one for one in typed if is_called(one, TIME_WORDS)), *ranged]
    named_so += [one for one in typed if any(_on_days_of(one, day) for day in named_so)]
    # The finest comes first: the day in a folder's name is coarser than a time.
    finest = sorted(named_so, key=lambda one: -one.distinct)
    return next(iter((*finest, *typed, *since, *named)), None)


def _on_days_of(column: ColumnSurvey, days: ColumnSurvey) -> bool:
    """Whether a column's times begin and end on the days that another column has, or, as in other
    time zones, a day beside them."""
    if column.seems != "times" or days.seems != "times" or pa.types.is_date(column.type):
        return False
    ends = ((column.low, days.low), (column.high, days.high))
    return all(one and day and abs(_apart(one, day)) <= 1 for one, day in ends)


def _apart(one: datetime.date, other: datetime.date) -> int:
    """How many days later one is than the other."""
    return one.toordinal() - other.toordinal()


def is_since(column: ColumnSurvey) -> bool:
    """Whether a column's numbers are times from 1990 to 2100 that are close together; its name does
    not matter, unless it is the name of ids."""
    unit = unit_of(column) if column.is_number and not is_called(column, ID_WORDS) else None
    if unit is None:
        return False
    if unit == "ns" and not _ends_in_zeros(column):
        return False  # ids that contain a time, such as ids of posts, are just as large
    second = SECOND[unit]
    near = column.low > 0.8 * column.high
    return bool(near and SINCE * second < column.low and column.high < UNTIL * second)


def _ends_in_zeros(column: ColumnSurvey) -> bool:
    """Whether the column's values are integers, all multiples of a thousand."""
    seen = pa.array([]) if column.seen is None else column.seen
    return pa.types.is_integer(seen.type) and not np.mod(seen.to_numpy(), 1_000).any()


def time_entry(column: ColumnSurvey) -> ColumnEntry:
    entry = ColumnEntry(column=column, part="time", value=unit_of(column))
    if column.whole and column.seen is not None:
        digits = date_digits(column.seen)
        if digits is not None:
            entry.value = digits
            entry.doubts.append("dates written as digits, in UTC?")
            return entry
    if len(column.dates) > 1:
        entry.doubts.append(
            f"dates as {' or as '.join(column.dates)}? Each fits them all: the first is taken"
        )
    if entry.value is None:
        entry.value = "s"
        entry.doubts.append(
            f"its numbers ({column.low:g} to {column.high:g}) are not times since 1970: only their "
            "order is right"
        )
    elif (other := _other_unit(column, entry.value)) is not None:
        entry.settle(
            f"its numbers count {entry.value}, and some would be of our time in {other[0]}, as "
            f"{other[1]}: write them in one unit"
        )
    elif not is_called(column, TIME_WORDS):
        entry.doubts.append("taken for the time, by what its values are")
    return entry


def _other_unit(column: ColumnSurvey, unit: str) -> tuple[str, int] | None:
    """Another unit in which some of the column's numbers are times from 1990 to 2100, and one of
    these numbers; None if there is none. Most numbers are times in `unit`."""
    if not column.is_number or column.seen is None:
        return None
    seen = column.seen.to_numpy(zero_copy_only=False).astype(np.float64)
    for _, _, other in UNITS:
        second = SECOND[other]
        some = seen[(seen > SINCE * second) & (seen < UNTIL * second)]
        if other != unit and len(some):
            return other, int(some[0])
    return None


def is_date(column: ColumnSurvey) -> bool:
    """Whether the column's numbers are the digits of dates, and its name is that of a time."""
    if (
        not (column.is_number and column.whole and is_called(column, TIME_WORDS))
        or column.seen is None
    ):
        return False
    return date_digits(column.seen) is not None


def are_times(column: ColumnSurvey) -> bool:
    """Whether the column has lists of times since 1970, by its name, or by its name and range."""
    if not column.is_list or column.seems != "integers":
        return False
    if not {"timestamp", "timestamps", "times"}.isdisjoint(words_of(column.name)):
        return True
    if not is_called(column, TIME_WORDS):
        return False
    low = 0 if column.low is None else column.low
    return any(first <= low and column.high < last for first, last, _ in UNITS if low)
