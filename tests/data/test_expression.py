"""Value tests and a property: expressions of rows, against Python's own comparisons."""

from __future__ import annotations

import datetime as dt
import math
import operator
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_plugins.data.expression import expression
from recd_plugins.data.selection import known_of
from recd_plugins.errors import RegistryError

UNITS = {"time": "ms"}
MAY = 1_714_521_600_000
ROWS = pa.table(
    {
        "country": pa.array(["DE", "FR", None, "DE"]),
        "n": pa.array([1, 2, 3, None], pa.int32()),
        "price": pa.array([1.0, math.nan, None, 0.1], pa.float32()),
        "day": pa.array([dt.date(2024, 5, one) for one in (1, 2, 3, 4)]),
        "at": pa.array([dt.datetime(2024, 5, one) for one in (1, 2, 3, 4)], pa.timestamp("ns")),
        "here": pa.array(
            [dt.datetime(2024, 5, one, tzinfo=dt.UTC) for one in (1, 2, 3, 4)],
            pa.timestamp("ms", "Europe/Berlin"),
        ),
        "time": [MAY, 0, 1, MAY + 1],
        "new": [True, False, None, True],
        "kind": pa.array(["a", "b", None, "a"]).dictionary_encode(),
        "ids": [[1], [2], [], [3]],
    }
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('country == "DE" and n >= 1', [0]),
        ('not country == "DE"', [1]),
        ("country in ('DE', 'FR') or n == 3", [0, 1, 2, 3]),
        ('country not in ["DE"]', [1]),
        ("n is null", [3]),
        ("n is not null and not (n < 3)", [2]),
        ("price == 0.1", [3]),
        ("not price > 3", [0, 1, 3]),
        ("day >= 2024-05-03", [2, 3]),
        ("2024-05-01 < at <= 2024-05-03", [1, 2]),
        ('at < "2024-05-02"', [0]),
        ("here >= 2024-05-02T02:00:00+02:00", [1, 2, 3]),
        ("time >= 2024-05-01", [0, 3]),
        ("new", [0, 3]),
        ("not new", [1]),
        ('kind == "a"', [0, 3]),
        ("n > 1.5", [1, 2]),
        ("`n` in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11)", [1, 2]),
        ("not n in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11)", [0]),
        ("n == 1 or n == 2 and new", [0]),
        ("n == 1\n  or n == 2", [0, 1]),
    ],
)
def test_rows_that_are_kept(text: str, kept: list[int]) -> None:
    mask = pickle.loads(pickle.dumps(expression(text, "where"))).mask(ROWS, UNITS)
    assert [row for row, one in enumerate(mask) if one] == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ns >= 1.7e18", [1, 2]),
        ("ns == 1.7e18", [1]),
        ("ns > 0.5", [1, 2]),
        ("ns < 1e30", [0, 1, 2]),
        ("key != -1", [0, 1, 2]),
        ("key > 0.5", [1, 2]),
        ("key in (-1, 0)", [0]),
        ("key == 18446744073709551615", [2]),
        ("small in (1, 2, 3, 4, 5, 6, 7, 8, 300)", [0, 1]),
    ],
)
def test_integers_compare_with_numbers_of_other_ranges(text: str, kept: list[int]) -> None:
    moments = [-5, 1_700_000_000_000_000_000, 1_700_000_000_000_000_001]
    rows = pa.table(
        {
            "ns": moments,
            "key": pa.array([0, 2**63, 2**64 - 1], pa.uint64()),
            "small": pa.array([1, 2, 100], pa.int8()),
        }
    )
    mask = expression(text, "where").mask(rows, {})
    assert [row for row, one in enumerate(mask) if one] == kept


@pytest.mark.parametrize(("unit", "second"), [("s", 1), ("ms", 1_000)])
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("time < 2024-05-01T00:00:00.0005", [0, 1]),
        ("time <= 2024-05-01T00:00:00.0005", [0, 1]),
        ("time >= 2024-05-01T00:00:00.0005", [2]),
        ("time > 2024-05-01T00:00:00.0005", [2]),
        ("time == 2024-05-01T00:00:00.0005", []),
        ("time in (2024-05-01T00:00:00.0005, 2024-05-01T00:00:01)", [2]),
        ("time != 2024-05-01T00:00:00.0005", [0, 1, 2]),
        ("time == 2024-05-01", [1]),
    ],
)
def test_a_time_between_two_that_a_unit_counts_is_neither(
    unit: str, second: int, text: str, kept: list[int]
) -> None:
    """It was the one before it, so that `<` left out rows, and `==` kept some."""
    rows = pa.table({"time": [MAY // 1_000 * second + one * second for one in (-1, 0, 1)]})
    mask = expression(text, "where").mask(rows, {"time": unit})
    assert [row for row, one in enumerate(mask) if one] == kept


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("zero", ["0", "-0.0", "0.0"])
@pytest.mark.parametrize("many", [1, 9])
def test_both_zeros_are_among_values_however_many(kind: Any, zero: str, many: int) -> None:
    """Of nine values, which are looked up, -0.0 was none."""
    rows = pa.table({"x": pa.array(np.array([0.0, -0.0, 1.0, np.nan], kind.to_pandas_dtype()))})
    values = ", ".join([zero, *(str(one) for one in range(2, many + 1))])
    kept = expression(f"x in ({values})", "where").mask(rows, {}).tolist()
    assert kept == [True, True, False, False]
    kept = expression(f"x not in ({values})", "where").mask(rows, {}).tolist()
    assert kept == [False, False, True, True]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("hour >= 1999-12-31", [0, 1, 2]),
        ("hour < 2101-01-01", [0, 1, 2]),
        ("hour == 2014-10-21T05:00", [1]),
        ("hour in (2014-10-21T05:30, 2014-10-21T06:00)", [2]),
        ("hour < 2014-10-21T05:30", [0, 1]),
        ("hour >= 2014-10-21T05:00:00.5", [2]),
    ],
)
def test_dates_as_digits_compare_as_the_times_that_they_are(text: str, kept: list[int]) -> None:
    rows = pa.table({"hour": pa.array([14102104, 14102105, 14102106], pa.int32())})
    mask = expression(text, "where").mask(rows, {"hour": "yymmddhh"})
    assert [row for row, one in enumerate(mask) if one] == kept


def test_times_that_are_texts_compare_as_texts() -> None:
    rows = pa.table({"at": ["13/05/2024", "14/05/2024", None]})
    mask = expression('at == "13/05/2024"', "where").mask(rows, {"at": "dd/mm/yyyy"})
    assert mask.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("text", "says", "marked"),
    [
        ("", "is empty", ""),
        ('contry == "DE"', "did you mean 'country'?", 'contry == "DE"'),
        ('country = "DE"', "write `==`", "="),
        ('n == "a"', "does not compare with a text. Write a value of its type", 'n == "a"'),
        ("n == 2024-05-01", "does not compare with a date", "n == 2024-05-01"),
        ("country > 3", "does not compare with a number", "country > 3"),
        ("ids == 3", "lists compare with nothing", "ids == 3"),
        ("n", "compare it with a value", "n"),
        ("day == 2024-13-01", "is no date", "2024-13-01"),
        ("day == 2024-05-01T10:00", "holds dates", "day == 2024-05-01T10:00"),
        ("n == 99999999999999999999", "is as large", "n == 99999999999999999999"),
        ("n ==", "here must be a value", "^"),
        ("n == 1 n", "`and`, `or` or the end", "n"),
        ("(n == 1", "must be `)`", "^"),
        ("n == null", "is null", "null"),
        ('__import__("os")', "`and`, `or` or the end", "("),
        ('country == "DE', "never closed", '"'),
        ("n == 1 & new", "write `and`", "&"),
        ("(" * 9_000, "too many parentheses", ""),
    ],
)
def test_what_is_no_expression_of_these_columns(text: str, says: str, marked: str) -> None:
    with pytest.raises(RegistryError) as caught:
        expression(text, "dataset.where").check(ROWS.schema, UNITS, "clicks")
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("dataset.where: ")
    assert says in lines[0]
    if marked:
        _, shown, carets = lines
        start, size = carets.index("^"), carets.count("^")
        assert (shown + "^")[start : start + size] == marked


SIGNS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
         ">": operator.gt, ">=": operator.ge}  # fmt: skip
Row = dict[str, Any]
NUMBERS = st.one_of(st.none(), st.integers(-3, 3))
FLOATS = st.one_of(st.none(), st.sampled_from([-1.5, 0.0, 0.5, 2.0, math.nan]))
TEXTS = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))


def of_column(name: str, literals: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def written(value: Any) -> str:
        return f'"{value}"' if isinstance(value, str) else str(value)

    def compared(sign: str, value: Any) -> Any:
        return (
            f"{name} {sign} {written(value)}",
            lambda row: None if row[name] is None else SIGNS[sign](row[name], value),
        )

    def among(values: list[Any]) -> Any:
        return (
            f"{name} in ({', '.join(map(written, values))})",
            lambda row: None if row[name] is None else row[name] in values,
        )

    return st.one_of(
        st.builds(compared, st.sampled_from(list(SIGNS)), literals),
        st.builds(among, st.lists(literals, min_size=1, max_size=10)),
        st.just((f"{name} is null", lambda row: row[name] is None)),
    )


def negated(one: Any) -> Any:
    def of(row: Row) -> bool | None:
        found = one[1](row)
        return None if found is None else not found

    return f"not ({one[0]})", of


def joined(word: str, one: Any, other: Any) -> Any:
    strong = word == "or"

    def of(row: Row) -> bool | None:
        both = [one[1](row), other[1](row)]
        return strong if strong in both else None if None in both else not strong

    return f"({one[0]}) {word} ({other[0]})", of


EXPRESSIONS = st.recursive(
    st.one_of(
        of_column("n", st.integers(-3, 3)),
        of_column("f", st.sampled_from([-1.5, 0.0, 0.5, 1.0])),
        of_column("t", st.sampled_from(["a", "b", "bb"])),
    ),
    lambda part: st.one_of(
        st.builds(negated, part), st.builds(joined, st.sampled_from(["and", "or"]), part, part)
    ),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NUMBERS, FLOATS, TEXTS), min_size=1, max_size=6), EXPRESSIONS)
def test_it_means_what_python_means_and_statistics_never_contradict_it(rows, drawn) -> None:
    text, meant = drawn
    table = pa.table(
        {
            "n": pa.array([row[0] for row in rows], pa.int64()),
            "f": pa.array([row[1] for row in rows], pa.float64()),
            "t": pa.array([row[2] for row in rows], pa.string()),
        }
    )
    found = expression(text, "where").mask(table, {}).tolist()
    assert found == [meant(dict(zip("nft", row, strict=True))) is True for row in rows]
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    footer = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata
    known = known_of(footer, 0, ["n", "f", "t"])
    verdict = expression(text, "where").verdict(known, table.schema, {})
    assert all(found) if verdict.every else True
    assert verdict.some or not any(found)


def test_statistics_tell_of_stripes_that_are_in_or_out() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1, 2, 5, 6, 8, 9]}), sink, row_group_size=2)
    footer = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata
    rule, arrow = expression("n > 5", "where"), footer.schema.to_arrow_schema()
    verdicts = [rule.verdict(known_of(footer, group, ["n"]), arrow, {}) for group in range(3)]
    assert verdicts == [(False, False), (True, False), (True, True)]
