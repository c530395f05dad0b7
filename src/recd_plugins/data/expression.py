"""A choice of rows, written as a text: `country == "DE" and time >= 2024-05-01`.

A row is kept where the expression is true. A null compares with nothing, so what asks for its value
is neither true nor false, as in SQL. The parser here knows comparisons of a column with literals,
`in`, `is null`, `and`, `or` and `not`, and nothing else.
"""

from __future__ import annotations

import datetime
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.keys import PER_SECOND
from recd_plugins.errors import RegistryError, nearest

__all__ = ["Expression", "Known", "Verdict", "expression"]

Literal = int | float | str | bool | datetime.datetime
Mask = npt.NDArray[np.bool_]

TRUE, FALSE, NULL = 1, 2, 4
"""What a row may make of an expression; a set of these is their sum."""

UTC = datetime.UTC

TOKENS = re.compile(
    r"""(?P<space>\s+)
      | (?P<date>\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?)
      | (?P<number>[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<text>"[^"]*"|'[^']*')
      | (?P<quoted>`[^`]+`)
      | (?P<word>[^\W\d][\w.]*)
      | (?P<sign>==|!=|<=|>=|<|>|[()\[\],])
    """,
    re.VERBOSE,
)
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
MANY = 8
"""Values of an `in` from which on they are looked up, rather than compared one by one."""
KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})


class Verdict(NamedTuple):
    """A verdict on rows, known before they are read."""

    some: bool
    """Whether any may be kept."""
    every: bool
    """Whether all are."""


class Known(NamedTuple):
    """The knowledge of a column's values in some rows: by the statistics of a stripe, or since a
    partition has one value of it (then `low` and `high` are that one)."""

    low: Any
    """No value is below it; None where that is not known."""
    high: Any
    nulls: int | None
    """The number of values that are null; None where that is not known."""
    rows: int


class TextRange(NamedTuple):
    """The range of the text in which something stands."""

    start: int
    stop: int


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    span: TextRange


class Expression:
    """A text, parsed; `RegistryError` shows the place that is wrong."""

    def __init__(self, text: str, where: str) -> None:
        """`where` is the option that holds it."""
        self.text = re.sub(r"\s", " ", text)
        self.where = where
        self._root = _Parser(self.text, where).parsed()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the files that it asks for."""
        return tuple(dict.fromkeys(leaf.column for leaf in self._root.leaves()))

    def mask(self, rows: pa.Table, units: Mapping[str, str]) -> Mask:
        """[N] which rows are kept. `units` has what a time counts that is a mere number."""
        bound = self._bound(rows.schema, units)
        columns = {name: _plain(rows[name]) for name in self.columns}
        found = pc.fill_null(self._root.of(columns, bound), False)
        return np.asarray(found.combine_chunks().to_numpy(zero_copy_only=False), np.bool_)

    def verdict(
        self, known: Mapping[str, Known], arrow: pa.Schema, units: Mapping[str, str]
    ) -> Verdict:
        """The verdict on rows of which so much is known."""
        outcomes = self._root.outcomes(known, self._bound(arrow, units))
        return Verdict(some=bool(outcomes & TRUE), every=outcomes == TRUE)

    def check(self, arrow: pa.Schema, units: Mapping[str, str], table: str) -> None:
        """`RegistryError` for a column that is not there, or does not compare with its literal."""
        for leaf in self._root.leaves():
            if arrow.names.count(leaf.column) != 1:
                raise self._error(
                    leaf.span,
                    f"{table} has no column {leaf.column!r}; {nearest(leaf.column, arrow.names)}",
                )
        self._bound(arrow, units)

    def _bound(self, arrow: pa.Schema, units: Mapping[str, str]) -> Bound:
        fields = tuple((name, arrow.field(name).type) for name in self.columns)
        return _bound(self.text, self.where, fields, tuple(sorted(units.items())))

    def _error(self, span: TextRange, message: str) -> RegistryError:
        return _error(self.text, self.where, span, message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[Any, ...]:
        return expression, (self.text, self.where)


@lru_cache(maxsize=64)
def expression(text: str, where: str) -> Expression:
    """The same text is parsed once."""
    return Expression(text, where)


Bound = Mapping["Leaf", "Test"]
"""What each leaf tests, once the types of its columns are known."""


@dataclass(frozen=True)
class Test:
    """A leaf's literals in the type of its column."""

    values: tuple[pa.Scalar, ...]
    floats: bool
    """Whether the column may hold what is not a number."""


@lru_cache(maxsize=64)
def _bound(
    text: str,
    where: str,
    fields: tuple[tuple[str, pa.DataType], ...],
    units: tuple[tuple[str, str], ...],
) -> Bound:
    types, unit_of = dict(fields), dict(units)
    found: dict[Leaf, Test] = {}
    for leaf in expression(text, where)._root.leaves():
        kind = _value_type(types[leaf.column])
        try:
            values = tuple(
                _scalar(value, kind, unit_of.get(leaf.column), leaf.column)
                for value in leaf.literals()
            )
        except OverflowError as error:
            message = f"no value of column {leaf.column!r}, which is {kind}, is as large."
            raise _error(text, where, leaf.span, message) from error
        except (_NotComparable, pa.ArrowException) as error:
            raise _error(text, where, leaf.span, str(error)) from error
        found[leaf] = Test(values, pa.types.is_floating(kind))
    return found


class Node(ABC):
    """A part of an expression."""

    @abstractmethod
    def leaves(self) -> Iterator[Leaf]: ...

    @abstractmethod
    def of(self, columns: Mapping[str, pa.ChunkedArray], bound: Bound) -> pa.ChunkedArray:
        """[N] true, false or null."""

    @abstractmethod
    def outcomes(self, known: Mapping[str, Known], bound: Bound) -> int:
        """The outcomes that rows may have, by what is known of them."""


@dataclass(frozen=True)
class Leaf(Node):
    """A test of one column."""

    column: str
    span: TextRange

    def leaves(self) -> Iterator[Leaf]:
        yield self

    def literals(self) -> tuple[Literal, ...]:
        return ()

    def outcomes(self, known: Mapping[str, Known], bound: Bound) -> int:
        facts = known.get(self.column)
        if facts is None:
            return TRUE | FALSE | NULL
        if facts.nulls == facts.rows:
            return NULL
        found = NULL if facts.nulls != 0 else 0
        if facts.low is None or facts.high is None:
            return found | TRUE | FALSE
        return found | self.of_values(facts.low, facts.high, bound[self])

    def of_values(self, low: Any, high: Any, test: Test) -> int:
        """The outcomes of values from `low` to `high`."""
        return TRUE | FALSE


@dataclass(frozen=True)
class Comparison(Leaf):
    sign: str
    value: Literal

    def literals(self) -> tuple[Literal, ...]:
        return (self.value,)

    def of(self, columns: Mapping[str, pa.ChunkedArray], bound: Bound) -> pa.ChunkedArray:
        return COMPARE[self.sign](columns[self.column], bound[self].values[0])

    def of_values(self, low: Any, high: Any, test: Test) -> int:
        (value,) = test.values
        least, most = _as(low, value.type), _as(high, value.type)
        if least is None or most is None:
            return TRUE | FALSE

        def holds(sign: str, one: pa.Scalar) -> bool:
            return bool(COMPARE[sign](one, value).as_py())

        within = holds("<=", least) and holds(">=", most)
        only = holds("==", least) and holds("==", most)
        true, false = {
            "==": (within, not only),
            "!=": (not only, within),
            "<": (holds("<", least), holds(">=", most)),
            "<=": (holds("<=", least), holds(">", most)),
            ">": (holds(">", most), holds("<=", least)),
            ">=": (holds(">=", most), holds("<", least)),
        }[self.sign]
        found = TRUE * true | FALSE * false
        if test.floats:  # statistics leave out what is not a number
            found |= TRUE if self.sign == "!=" else FALSE
        return found


@dataclass(frozen=True)
class Among(Leaf):
    values: tuple[Literal, ...]

    def literals(self) -> tuple[Literal, ...]:
        return self.values

    def of(self, columns: Mapping[str, pa.ChunkedArray], bound: Bound) -> pa.ChunkedArray:
        column, values = columns[self.column], bound[self].values
        found = [pc.equal(column, value) for value in values]
        if len(values) > MANY and len({value.type for value in values}) == 1:
            several = pa.array(list(values), values[0].type)
            found = [pc.if_else(pc.is_valid(column), pc.is_in(column, value_set=several), None)]
        return reduce(pc.or_kleene, found)

    def of_values(self, low: Any, high: Any, test: Test) -> int:
        found = FALSE * test.floats
        each = [
            Comparison(self.column, self.span, "==", 0).of_values(
                low, high, Test((value,), test.floats)
            )
            for value in test.values
        ]
        found |= TRUE * any(one & TRUE for one in each)
        return found | FALSE * all(one & FALSE for one in each)


@dataclass(frozen=True)
class IsNull(Leaf):
    def of(self, columns: Mapping[str, pa.ChunkedArray], bound: Bound) -> pa.ChunkedArray:
        return pc.is_null(columns[self.column])

    def outcomes(self, known: Mapping[str, Known], bound: Bound) -> int:
        facts = known.get(self.column)
        if facts is None or facts.nulls is None:
            return TRUE | FALSE
        return TRUE * (facts.nulls > 0) | FALSE * (facts.nulls < facts.rows)


@dataclass(frozen=True)
class Not(Node):
    part: Node

    def leaves(self) -> Iterator[Leaf]:
        yield from self.part.leaves()

    def of(self, columns: Mapping[str, pa.ChunkedArray], bound: Bound) -> pa.ChunkedArray:
        return pc.invert(self.part.of(columns, bound))

    def outcomes(self, known: Mapping[str, Known], bound: Bound) -> int:
        found = self.part.outcomes(known, bound)
        return found & NULL | TRUE * bool(found & FALSE) | FALSE * bool(found & TRUE)


@dataclass(frozen=True)
class Joined(Node):
    """Parts joined by `and`, or by `or`."""

    word: str
    parts: tuple[Node, ...]

    def leaves(self) -> Iterator[Leaf]:
        for part in self.parts:
            yield from part.leaves()

    def of(self, columns: Mapping[str, pa.ChunkedArray], bound: Bound) -> pa.ChunkedArray:
        join = pc.and_kleene if self.word == "and" else pc.or_kleene
        return reduce(join, (part.of(columns, bound) for part in self.parts))

    def outcomes(self, known: Mapping[str, Known], bound: Bound) -> int:
        strong = FALSE if self.word == "and" else TRUE
        found = [part.outcomes(known, bound) for part in self.parts]
        return reduce(lambda one, other: _either(one, other, strong), found)


def _either(one: int, other: int, strong: int) -> int:
    """The outcomes that two sets of them may make together, where `strong` decides and null comes
    next."""
    found = 0
    for left, right in product((TRUE, FALSE, NULL), repeat=2):
        if one & left and other & right:
            both = {left, right}
            found |= strong if strong in both else NULL if NULL in both else left
    return found


class _Parser:
    """Reads a text from left to right, one function a rule."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        self._tokens = list(_tokens(text, where))
        self._at = 0

    def parsed(self) -> Node:
        if not self._tokens:
            raise RegistryError("is empty. Say which rows, or take it out.", self._where)
        try:
            found = self._joined("or", lambda: self._joined("and", self._negated))
        except RecursionError:
            message = "has too many parentheses within each other."
            raise RegistryError(message, self._where) from None
        if self._at < len(self._tokens):
            raise self._wrong("`and`, `or` or the end")
        return found

    def _joined(self, word: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Joined(word, tuple(parts))

    def _negated(self) -> Node:
        if self._take("not"):
            return Not(self._negated())
        if self._take("("):
            found = self._joined("or", lambda: self._joined("and", self._negated))
            self._need(")")
            return found
        return self._test()

    def _test(self) -> Node:
        start = self._next
        if start is not None and self._is_literal(start):
            return self._bounded(start.span.start)
        column = self._column()
        if self._take("is"):
            negated = self._take("not")
            found = IsNull(column.text, TextRange(column.span.start, self._need("null").span.stop))
            return Not(found) if negated else found
        negated = self._take("not")
        if negated or self._follows("in"):
            self._need("in")
            values, stop = self._list()
            among = Among(column.text, TextRange(column.span.start, stop), values)
            return Not(among) if negated else among
        sign = self._sign()
        if sign is None:  # a column of true and false
            return Comparison(column.text, column.span, "==", True)
        value, end = self._literal()
        return Comparison(column.text, TextRange(column.span.start, end.stop), sign, value)

    def _bounded(self, start: int) -> Node:
        """`LITERAL < column`, and `LITERAL < column < LITERAL`."""
        low, _ = self._literal()
        sign = self._sign()
        if sign is None:
            raise self._wrong("a comparison, as `==` or `<`")
        column = self._column()
        first = Comparison(column.text, TextRange(start, column.span.stop), MIRRORED[sign], low)
        sign = self._sign()
        if sign is None:
            return first
        high, end = self._literal()
        second = Comparison(column.text, TextRange(column.span.start, end.stop), sign, high)
        return Joined("and", (first, second))

    def _list(self) -> tuple[tuple[Literal, ...], int]:
        close = "]" if self._take("[") else ")"
        if close == ")":
            self._need("(")
        values = [self._literal()[0]]
        while self._take(","):
            values.append(self._literal()[0])
        return tuple(values), self._need(close).span.stop

    def _column(self) -> Token:
        token = self._next
        word = token is not None and token.kind == "word" and token.text not in KEYWORDS
        if token is None or not (word or token.kind == "quoted"):
            raise self._wrong("the name of a column")
        self._at += 1
        return token

    def _sign(self) -> str | None:
        token = self._next
        if token is None or token.text not in COMPARE or token.kind != "sign":
            return None
        self._at += 1
        return token.text

    def _literal(self) -> tuple[Literal, TextRange]:
        token = self._next
        if token is not None and token.kind == "word" and token.text == "null":
            raise self._wrong("a value; of nulls say `is null` or `is not null`")
        if token is None or not self._is_literal(token):
            raise self._wrong('a value: a number, a date, true, false, or a "text" in quotes')
        self._at += 1
        try:
            return _value(token), token.span
        except ValueError as error:
            raise _error(self._text, self._where, token.span, f"{error}.") from error

    @staticmethod
    def _is_literal(token: Token) -> bool:
        plain = token.kind in ("date", "number", "text")
        return plain or (token.kind == "word" and token.text in ("true", "false"))

    @property
    def _next(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _follows(self, text: str) -> bool:
        token = self._next
        return token is not None and token.kind in ("word", "sign") and token.text == text

    def _take(self, text: str) -> bool:
        found = self._follows(text)
        self._at += found
        return found

    def _need(self, text: str) -> Token:
        token = self._next
        if token is None or not self._take(text):
            raise self._wrong(f"`{text}`")
        return token

    def _wrong(self, wanted: str) -> RegistryError:
        token, end = self._next, len(self._text.rstrip())
        span = TextRange(end, end + 1) if token is None else token.span
        return _error(self._text, self._where, span, f"here must be {wanted}.")


def _tokens(text: str, where: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        found = TOKENS.match(text, at)
        if found is None:
            raise _error(text, where, TextRange(at, at + 1), _unknown(text[at]))
        kind = found.lastgroup or ""
        if kind != "space":
            words = found.group()[1:-1] if kind in ("text", "quoted") else found.group()
            yield Token(kind, words, TextRange(*found.span()))
        at = found.end()


def _unknown(sign: str) -> str:
    if sign == "=":
        return "`=` compares nothing: write `==`."
    if sign in "\"'`":
        return "this quote is never closed."
    if sign in "&|!":
        return f"{sign!r} means nothing here: write `and`, `or` and `not`."
    return (
        f"{sign!r} means nothing here: an expression compares columns with values, by == != < <= "
        "> >= in, is null, and joins that by and, or, not and parentheses."
    )


def _value(token: Token) -> Literal:
    if token.kind == "text":
        return token.text
    if token.kind == "word":
        return token.text == "true"
    if token.kind == "date":
        return _moment(token.text)
    digits = token.text.replace("_", "")
    return float(digits) if set(digits) & set(".eE") else int(digits)


def _moment(text: str) -> datetime.datetime:
    """A date is its midnight; without a zone it is of UTC."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no date: write 2024-05-01 or 2024-05-01T10:00:00") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _error(text: str, where: str, span: TextRange, message: str) -> RegistryError:
    marks = "^" * max(1, span.stop - span.start)
    return RegistryError(f"{message}\n  {text}\n  {' ' * span.start}{marks}", where)


class _NotComparable(ValueError):
    """A column and a literal that do not compare."""


def _value_type(kind: pa.DataType) -> pa.DataType:
    """The type as which values of a type compare: Arrow does not compare each as it is."""
    kind, types = (kind.value_type if pa.types.is_dictionary(kind) else kind), pa.types
    if types.is_float16(kind):
        return pa.float32()
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_decimal32(kind) or types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = _value_type(column.type)
    return column if kind == column.type else column.cast(kind)


def _scalar(value: Literal, kind: pa.DataType, unit: str | None, column: str) -> pa.Scalar:
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
            value = _moment(value)
        except ValueError as error:
            raise _NotComparable(f"{error}.") from error
    if isinstance(value, datetime.datetime):
        return _time(value, kind, unit, column)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and types.is_integer(kind):
        if isinstance(value, float):
            return pa.scalar(value)
        whole = int(value)
        return pa.scalar(whole, pa.uint64() if kind == pa.uint64() and whole >= 0 else pa.int64())
    if number and (types.is_floating(kind) or types.is_decimal(kind)):
        return pa.scalar(str(value) if types.is_decimal(kind) else float(value)).cast(kind)
    raise _NotComparable(_why_not(value, kind, column))


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
            raise _NotComparable(f"column {column!r} holds dates: compare it with one.")
        return pa.scalar(value.date(), kind)
    if types.is_integer(kind) and unit is not None:
        if unit not in PER_SECOND:  # the digits of a date
            return _digits(value.astimezone(UTC), unit)
        since = value - datetime.datetime(1970, 1, 1, tzinfo=UTC)
        micros = since // datetime.timedelta(microseconds=1)
        return pa.scalar(micros * PER_SECOND[unit] // 1_000_000, pa.int64())
    raise _NotComparable(
        f"column {column!r} is {kind}, which does not compare with a date: that does a date, a "
        "timestamp, and the number that the schema names as the time."
    )


def _digits(moment: datetime.datetime, unit: str) -> pa.Scalar:
    """The digits of the date of `unit` in which a time lies; one half more of a time within it, as
    it compares with whole ones. Of two digits for the year 1999 is below 2000, and 2100 above."""
    years = unit.count("y")
    found = moment.year - (2_000 if years == 2 else 0)
    parts = (moment.month, moment.day, moment.hour, moment.minute, moment.second)
    count = (len(unit) - years) // 2
    for part in parts[:count]:
        found = 100 * found + part
    within = any((*parts[count:], moment.microsecond))
    return pa.scalar(found + 0.5) if within else pa.scalar(found, pa.int64())


def _as(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """A bound in the type of the literal; None where it has none such."""
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
