"""The tree of an expression: of each part, which rows it is true of, and what may be known of that
before they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.values import one_zero
from recd_plugins.data.expression.literals import Literal, as_bound, beside

__all__ = [
    "COMPARE",
    "TRUE",
    "Among",
    "Bound",
    "Comparison",
    "IsNull",
    "Joined",
    "Known",
    "Leaf",
    "Node",
    "Not",
    "Test",
    "TextRange",
]

TRUE, FALSE, NULL = 1, 2, 4
"""What a row may make of an expression; a set of these is their sum."""

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
MANY = 8
"""Values of an `in` from which on they are looked up, rather than compared one by one."""


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
        (value,) = bound[self].values
        return COMPARE[self.sign](beside(columns[self.column], value.type), value)

    def of_values(self, low: Any, high: Any, test: Test) -> int:
        (value,) = test.values
        least, most = as_bound(low, value.type), as_bound(high, value.type)
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
        if len(values) > MANY and len({value.type for value in values}) == 1:
            several = one_zero(pa.array(list(values), values[0].type))
            found = pc.is_in(one_zero(beside(column, several.type)), value_set=several)
            return pc.if_else(pc.is_valid(column), found, None)
        each = (pc.equal(beside(column, value.type), value) for value in values)
        return reduce(pc.or_kleene, each)

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


Bound = Mapping["Leaf", "Test"]
"""What each leaf tests, once the types of its columns are known."""


@dataclass(frozen=True)
class Test:
    """A leaf's literals in the type of its column."""

    values: tuple[pa.Scalar, ...]
    floats: bool
    """Whether the column may hold what is not a number."""
