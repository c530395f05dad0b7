"""The tree of an expression.

Each part says for which rows it is true, and what is known of that before the rows are read.
"""

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
"""The possible outcomes of an expression for a row; a set of outcomes is their sum."""

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
MANY = 8
"""If an `in` has more values, they are looked up rather than compared one by one."""


class Known(NamedTuple):
    """What is known of a column's values in some rows: from the statistics of a stripe, or from a
    partition, which has one value (then both `low` and `high` are that value)."""

    low: Any
    """No value is below this; None if no such bound is known."""
    high: Any
    nulls: int | None
    """The number of nulls; None if it is not known."""
    rows: int


class TextRange(NamedTuple):
    """The range of a part in the text."""

    start: int
    stop: int


class Node(ABC):
    """A part of an expression."""

    @abstractmethod
    def leaves(self) -> Iterator[Leaf]: ...

    @abstractmethod
    def of(self, columns: Mapping[str, pa.ChunkedArray], bound: Bound) -> pa.ChunkedArray:
        """[N] the outcome for each row: true, false or null."""

    @abstractmethod
    def outcomes(self, known: Mapping[str, Known], bound: Bound) -> int:
        """The set of outcomes that are possible for rows, given what is known of them."""


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
        """The set of outcomes that values from `low` to `high` may have."""
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
        if test.floats:  # statistics leave out NaN
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
    """The outcomes of two joined parts, given those of each: `strong` decides, then null."""
    found = 0
    for left, right in product((TRUE, FALSE, NULL), repeat=2):
        if one & left and other & right:
            both = {left, right}
            found |= strong if strong in both else NULL if NULL in both else left
    return found


Bound = Mapping["Leaf", "Test"]
"""The test of each leaf, once the types of the columns are known."""


@dataclass(frozen=True)
class Test:
    """A leaf's literals in the type of its column."""

    values: tuple[pa.Scalar, ...]
    floats: bool
    """Whether the column may hold NaN."""
