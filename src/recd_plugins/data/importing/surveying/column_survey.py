"""A column in a sample: what its values seem to be, and how many there may be."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.dates import text_dates
from recd_plugins.data.conform.values import MOST_EXACT, are_texts, is_list
from recd_plugins.data.foreign import TextDates
from recd_plugins.data.importing.struct_fields import is_pair, undressed
from recd_plugins.data.importing.surveying.few_types import is_number, of_few_types
from recd_plugins.data.importing.surveying.filled_lists import filling

__all__ = ["ColumnSurvey", "Seems", "column_survey"]

EXAMPLES = 3
PLACES = 64
"""Parts of a sample, of which a value that rows next to each other share lies in one alone."""

Counts = np.ndarray[Any, np.dtype[np.int64]]
Seems = Literal["integers", "numbers", "texts", "booleans", "times", "scored ids", "unknown"]


@dataclass(frozen=True, kw_only=True)
class ColumnSurvey:
    """A column as a sample shows it."""

    name: str
    type: pa.DataType
    """The type as which it is read."""
    seems: Seems
    """The kind of its values, or of the elements of its lists."""
    is_list: bool
    width: int | None
    """The length of its lists, if all have the same."""
    rows: int
    nulls: int
    """Rows without a value, or with one that is not a number."""
    values: int
    """Values, or elements of lists."""
    distinct: int
    """Different values in the sample."""
    estimate: int
    """Different values in all of the rows, by Chao's estimate."""
    most: int = 0
    """An upper bound of these: if values went on to be new as often as they last were."""
    low: Any = None
    high: Any = None
    lengths: tuple[int, float, int] | None = None
    """The lengths of lists: the shortest, the mean, the longest."""
    fills: int | str | None = None
    """The value with which its lists are padded, if there is one; the rest of this survey does not
    count it."""
    gaps: int = 0
    """Elements of lists that are null, or not a number."""
    examples: tuple[str, ...] = ()
    two_valued: bool = False
    """Whether its values are all 0 or 1."""
    whole: bool = False
    """Whether all of its numbers are whole."""
    mean: float | None = None
    seen: pa.Array | None = None
    """The different values of the sample."""
    counts: Counts | None = None
    """The rows, or elements of lists, that have each of these."""
    ascending: bool = False
    """Whether its values never decrease, in the order of the rows."""
    dates: tuple[TextDates, ...] = ()
    """The forms of a date that all of its texts have."""

    @property
    def unique(self) -> bool:
        """Whether nearly every value is a different one."""
        return self.values >= 100 and self.distinct >= 0.98 * self.values

    @property
    def is_number(self) -> bool:
        """Whether each row has a number."""
        return not self.is_list and self.seems in ("integers", "numbers", "booleans")

    @property
    def may_name(self) -> bool:
        """Whether its values may name something, including integers in floats."""
        exact = self.whole and self.high is not None and abs(self.high) < MOST_EXACT
        named = self.seems in ("integers", "texts") or (self.seems == "numbers" and exact)
        return not self.is_list and named


def column_survey(name: str, column: pa.ChunkedArray, rows: int) -> ColumnSurvey:
    """What the column of a sample shows; `rows` is the number of all rows, of which the sample has
    some."""
    kind, lists, nulls = column.type, is_list(column.type), column.null_count
    if pa.types.is_map(kind):
        scored = is_number(kind.item_type)
        return ColumnSurvey(
            name=name, type=kind, seems="scored ids" if scored else "unknown", is_list=True,
            width=None, rows=len(column), nulls=nulls, values=0, distinct=0, estimate=0,
        )  # fmt: skip
    lengths, width = _lengths(column) if lists else (None, None)
    values = _elements(column)
    seems = _seems(values.type)
    if seems == "scored ids" and not lists:
        seems = "unknown"
    if seems in ("unknown", "scored ids"):
        return ColumnSurvey(
            name=name, type=kind, seems=seems, is_list=lists, width=width, rows=len(column),
            nulls=nulls, values=len(values) - values.null_count, distinct=0, estimate=0,
            lengths=lengths,
        )  # fmt: skip
    present = values.drop_null()
    fills: int | str | None = None
    if lists:
        present, fills = _unpadded(present, width if len(present) == len(values) else None)
    if seems == "numbers":
        present = present.filter(pc.is_finite(present))
        nulls += 0 if lists else len(values) - values.null_count - len(present)
    counted = pc.value_counts(present.combine_chunks())
    counts = counted.field("counts").to_numpy(zero_copy_only=False)
    different = counted.field("values")
    at = _places(present, different, counts) if seems in ("integers", "texts") else counts
    elements = rows * (1.0 if lengths is None else lengths[1])
    expected = round(elements * len(present) / max(len(values), 1))
    numbers = _Numbers()
    if len(present) and seems in ("integers", "numbers", "times"):
        numbers = _numbers(present, seems)
    return ColumnSurvey(
        name=name,
        type=kind,
        seems=seems,
        is_list=lists,
        width=width,
        rows=len(column),
        nulls=nulls,
        values=len(present),
        distinct=len(counts),
        estimate=_estimate(counts, expected, at),
        most=_most(counts, expected, at),
        low=numbers.low,
        high=numbers.high,
        lengths=lengths,
        fills=fills,
        gaps=len(values) - len(present) if lists and fills is None else 0,
        examples=tuple(_shown(one.as_py()) for one in different[:EXAMPLES]),
        two_valued=seems in ("integers", "numbers", "booleans")
        and set(pc.unique(different).to_pylist()[:3]) == {0, 1},
        whole=numbers.whole,
        mean=numbers.mean,
        seen=different,
        counts=counts,
        ascending=numbers.ascending and not lists,
        dates=text_dates(different) if seems == "texts" and not lists else (),
    )


def _elements(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a column, or the elements of its lists, in a type that Arrow computes with."""
    values = column
    if is_list(column.type):
        elements = [one.flatten() for one in column.chunks]
        values = pa.chunked_array(elements, column.type.value_type)
    values = of_few_types(undressed(values))
    if pa.types.is_timestamp(values.type):  # Python's times have no nanoseconds
        values = values.cast(pa.timestamp("us", values.type.tz), safe=False)
    return values


def _unpadded(
    present: pa.ChunkedArray, width: int | None
) -> tuple[pa.ChunkedArray, int | str | None]:
    """The elements of lists without those that pad them, and the value that does, or None. `width`
    is the length of all lists, or None if that differs or some elements are null."""
    fills = filling(present, width) if len(present) else None
    if fills is not None:
        present = present.filter(pc.not_equal(present, pa.scalar(fills, present.type)))
    return present, fills


def _lengths(lists: pa.ChunkedArray) -> tuple[tuple[int, float, int] | None, int | None]:
    """The shortest, mean and longest length of lists, or None without lists; and the length that
    all have, or None."""
    counted = pc.list_value_length(lists).drop_null().to_numpy()
    if not counted.size:
        return None, None
    shortest, longest = int(counted.min()), int(counted.max())
    width = shortest if shortest == longest and shortest > 0 else None
    return (shortest, float(counted.mean()), longest), width


class _Numbers(NamedTuple):
    """Bounds of numbers or times, and what the numbers are."""

    low: Any = None
    high: Any = None
    mean: float | None = None
    whole: bool = False
    ascending: bool = False


def _numbers(present: pa.ChunkedArray, seems: Seems) -> _Numbers:
    bounds = pc.min_max(present).as_py()
    low, high = bounds["min"], bounds["max"]
    if seems == "times":  # a date has 32 bits
        present = present.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    array = present.to_numpy()
    ascending = array.size > 1 and bool(np.all(array[1:] >= array[:-1]))
    if seems == "times":
        return _Numbers(low, high, ascending=ascending)
    whole = bool(np.all(np.mod(array, 1) == 0))
    return _Numbers(low, high, float(array.mean()), whole, ascending)


def _seems(kind: pa.DataType) -> Seems:
    types = pa.types
    if types.is_integer(kind):
        return "integers"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "numbers"
    if are_texts(kind):
        return "texts"
    if types.is_boolean(kind):
        return "booleans"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "times"
    if is_pair(kind):
        return "scored ids"
    return "unknown"


def _places(present: pa.ChunkedArray, different: pa.Array, counts: Counts) -> Counts:
    """In how many of `PLACES` parts of the sample each value is; `counts`, unless values that lie
    together are many.

    Chao, and Good and Turing, have rows drawn one by one. In a log, rows of a session follow one
    another: there the parts are what is drawn.
    """
    if len(counts) < len(present) and len(present) >= PLACES * PLACES:
        found = np.zeros(len(counts), np.int64)
        indices = pc.index_in(present.combine_chunks(), value_set=different).to_numpy()
        for part in np.array_split(indices, PLACES):
            found[np.unique(part)] += 1
        if int((found == 1).sum()) > 2 * int((counts == 1).sum()) + PLACES:
            return found
    return counts


def _estimate(counts: Counts, values: int, at: Counts) -> int:
    """Chao's estimate of how many different values there are: d + f1² / 2 f2, where the sample has
    f1 of them once and f2 twice, or in so many of its parts (`at`)."""
    if not counts.size:
        return 0
    once, twice = int((at == 1).sum()), int((at == 2).sum())
    sampled = int(counts.sum())
    if int((counts == 1).sum()) == sampled:
        return values
    unseen = once * once / (2 * twice) if twice else once * (once - 1) / 2
    return int(min(len(counts) + unseen, len(counts) * max(1.0, values / sampled)))


def _most(counts: Counts, values: int, at: Counts) -> int:
    """d + f1 / n (N - n): by Good and Turing, f1 / n of the next values are new, and ever fewer."""
    once, sampled = int((at == 1).sum()), int(counts.sum())
    return len(counts) + round(once / max(sampled, 1) * max(values - sampled, 0))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= 24 else f"{value[:21]}...")
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"0x{value[:8].hex()}{'...' if len(value) > 8 else ''}"
    return f"{value:g}" if isinstance(value, float) else str(value)
