"""Drawn tables that are wrong in one place: a fault in one column of one file."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pyarrow as pa
from drawn_columns import Column, Value
from drawn_table import Drawn, File


@dataclass
class Fault:
    """What is wrong with a column of a file."""

    file: File
    column: Column
    what: str


def faulty(one: Drawn) -> Fault | None:
    """The same table with a fault in one column of one file; none where it has no place for it."""
    random, table = Random(one.seed), one.table
    dataset = one.registry["dataset"]
    drops = any(c.options.get("nulls") == "drop" for c in table.columns)
    if drops or {"where", "sessions_share"} & {*dataset}:
        return None
    files = [file for file in table.files if file.rows]
    file = random.choice(files)
    hidden = ("unread", "key")
    read = [c for c in table.columns if c.role not in hidden and c.name != dataset.get("without")]
    columns = [c for c in read if c.name in file.columns]
    column = random.choice(columns)
    choices = FAULTS[{"number": "feature", "part": "session"}.get(column.role, column.role)]
    fitting = [one for one in choices if one[2](column)]
    if not fitting:
        return None
    what, fault, _ = random.choice(fitting)
    kind, values = file.columns[column.name]
    at = random.randrange(file.rows)
    made = fault(column)
    if made is None:
        del file.columns[column.name]
    else:
        kind, value, good = made
        values = [good] * file.rows
        values[at] = value
        file.columns[column.name] = kind, values
    table.write(file)
    return Fault(file, column, what)


Made = tuple[pa.DataType, Value, Value] | None
Kind = tuple[str, Callable[[Column], Made], Callable[[Column], bool]]


def _as_is(column: Column) -> bool:
    return column.options.get("ids", "as_is") == "as_is" and not column.options.get("scored")


def _unscored(column: Column) -> bool:
    return not column.options.get("scored")


def _strict(column: Column) -> bool:
    return column.options.get("nulls", "empty") == "error"


def _plain(column: Column) -> bool:
    return "width" not in column.options


def _any(column: Column) -> bool:
    return True


def _unmarked(column: Column) -> bool:
    return _as_is(column) and not column.options.get("missing")


NESTED = pa.struct([("a", pa.int64())])
FAULTS: dict[str, list[Kind]] = {
    "feature": [
        ("beyond", lambda c: (pa.int64(), c.options["num_ids"], 1), _unmarked),
        ("beyond, in a list", lambda c: (pa.list_(pa.int64()), [1, c.options["num_ids"]], []),
         _unmarked),
        ("beyond, a float", lambda c: (pa.float64(), float(2 * c.options["num_ids"]), 1.0),
         _unmarked),
        ("negative", lambda c: (pa.int16(), -1, 1), _unmarked),
        ("beyond int63", lambda c: (pa.list_(pa.uint64()), [2**63], [1]), _as_is),
        ("a text", lambda c: (pa.string(), "a", "1"), _as_is),
        ("a fraction", lambda c: (pa.float64(), 2.5, 1.0), _unscored),
        ("a half of a fraction", lambda c: (pa.list_(pa.float16()), [2.5], []), _unscored),
        ("a decimal's fraction",
         lambda c: (pa.decimal64(9, 1), decimal.Decimal("2.5"), decimal.Decimal(1)), _unscored),
        ("a decimal that is huge",
         lambda c: (pa.decimal256(40, 0), decimal.Decimal(2**70), decimal.Decimal(1)), _unscored),
        ("infinite", lambda c: (pa.float32(), math.inf, 1.0), _unscored),
        ("a time", lambda c: (pa.timestamp("ms"), 5, 6), _any),
        ("a struct", lambda c: (NESTED, {"a": 1}, {"a": 1}), _any),
        ("lists of lists", lambda c: (pa.list_(pa.list_(pa.int64())), [[1]], [[1]]), _any),
        ("a null", lambda c: (pa.list_(pa.int64()), [None], [1]),
         lambda c: _strict(c) and _unscored(c)),
        ("a null list", lambda c: (pa.list_(pa.int64()), None, [1]),
         lambda c: _strict(c) and _unscored(c)),
        ("not there", lambda c: None, lambda c: not c.may_lack),
        ("no pairs", lambda c: (pa.list_(pa.int64()), [1], [1]), lambda c: not _unscored(c)),
        ("an id of a pair beyond", lambda c: (pa.map_(pa.int64(), pa.float32()), [(500, 1.0)], []),
         lambda c: not _unscored(c)),
        ("a weight of text", lambda c: (pa.map_(pa.int64(), pa.string()), [(5, "a")], []),
         lambda c: not _unscored(c)),
    ],
    "dense": [
        ("a text", lambda c: (pa.string(), "a", "1"), _any),
        ("a time", lambda c: (pa.date32(), 5, 6), _any),
        ("NaN", lambda c: (pa.float64(), math.nan, 1.0), lambda c: _strict(c) and _plain(c)),
        ("a half's infinity", lambda c: (pa.float16(), math.inf, 1.0),
         lambda c: _strict(c) and _plain(c)),
        ("1e300", lambda c: (pa.float64(), 1e300, 1.0), lambda c: _strict(c) and _plain(c)),
        ("a list", lambda c: (pa.list_(pa.float32()), [1.0], [1.0]), _plain),
        ("no list", lambda c: (pa.float32(), 1.0, 1.0), lambda c: not _plain(c)),
        ("another width", lambda c: (pa.list_(pa.float32()), [1.0] * 5, [1.0] * c.options["width"]),
         lambda c: not _plain(c)),
        ("not there", lambda c: None, lambda c: not c.may_lack),
    ],
    "label": [
        ("2 as a click", lambda c: (pa.int8(), 2, 1), lambda c: c.options["kind"] == "click"),
        ("-1 as a grade", lambda c: (pa.float16(), -1.0, 1.0),
         lambda c: c.options["kind"] != "regression"),
        ("a text", lambda c: (pa.large_string(), "yes", "no"), _any),
        ("a null", lambda c: (pa.decimal32(3, 0), None, decimal.Decimal(1)), _strict),
        ("not there", lambda c: None, _any),
    ],
    "weight": [
        ("negative", lambda c: (pa.float64(), -1.0, 1.0), _any),
        ("a text", lambda c: (pa.string(), "a", "1"), _any),
        ("not there", lambda c: None, _any),
    ],
    "session": [
        ("a list", lambda c: (pa.list_(pa.int64()), [1], [1]), _any),
        ("a fraction", lambda c: (pa.float32(), 0.5, 1.0), _any),
        ("the time of a day", lambda c: (pa.time64("us"), 1, 1), _any),
        ("a null", lambda c: (pa.uint8(), None, 1), _strict),
        ("not there", lambda c: None, _any),
    ],
    "time": [
        ("a text", lambda c: (pa.string(), "2020-01-01", "2020-01-02"), _any),
        ("a bool", lambda c: (pa.bool_(), True, True), _any),
        ("the time of a day", lambda c: (pa.time32("ms"), 1, 1), _any),
        ("a null", lambda c: (pa.timestamp("us"), None, 5), _strict),
        ("infinite", lambda c: (pa.float64(), math.inf, 5.0), _any),
        ("not there", lambda c: None, _any),
    ],
}  # fmt: skip
