"""A choice of rows, written as a text: `country == "DE" and time >= 2024-05-01`.

A row is kept if the expression is true. As in SQL, a comparison with a null is neither true nor
false. The parser knows only comparisons of a column with literals, `in`, `is null`, `and`, `or` and
`not`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.expression.literals import (
    NotComparable,
    comparable,
    literal_in,
    value_type,
)
from recd_plugins.data.expression.parser import error_at, parsed
from recd_plugins.data.expression.tree import TRUE, Bound, Known, Leaf, Test, TextRange
from recd_plugins.errors import RegistryError, nearest

__all__ = ["Expression", "Verdict", "expression"]

Mask = npt.NDArray[np.bool_]


class Verdict(NamedTuple):
    """What is known of rows before they are read."""

    some: bool
    """Whether any of them may be kept."""
    every: bool
    """Whether all of them are kept."""


class Expression:
    """A parsed text; if it is wrong, a `RegistryError` shows the place."""

    def __init__(self, text: str, where: str) -> None:
        """`where` is the option that holds the text."""
        self.text = re.sub(r"\s", " ", text)
        self.where = where
        self._root = parsed(self.text, where)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the files that the expression needs, each once."""
        return tuple(dict.fromkeys(leaf.column for leaf in self._root.leaves()))

    def mask(self, rows: pa.Table, units: Mapping[str, str]) -> Mask:
        """[N] which rows are kept. `units` has the unit of each time that is a plain number."""
        bound = self._bound(rows.schema, units)
        columns = {name: comparable(rows[name]) for name in self.columns}
        found = pc.fill_null(self._root.of(columns, bound), False)
        return np.asarray(found.combine_chunks().to_numpy(zero_copy_only=False), np.bool_)

    def verdict(
        self, known: Mapping[str, Known], arrow: pa.Schema, units: Mapping[str, str]
    ) -> Verdict:
        """The verdict on rows of which `known` says what is known of each column."""
        outcomes = self._root.outcomes(known, self._bound(arrow, units))
        return Verdict(some=bool(outcomes & TRUE), every=outcomes == TRUE)

    def check(self, arrow: pa.Schema, units: Mapping[str, str], table: str) -> None:
        """Raise `RegistryError` if a column is missing or cannot be compared with its literal."""
        for leaf in self._root.leaves():
            if arrow.names.count(leaf.column) != 1:
                hint = f"; {nearest(leaf.column, arrow.names)}"
                if f"/{leaf.column}=" in f"/{table}":
                    hint = (
                        f": only folders below the one that is named make columns. Name the folder "
                        f"around `{leaf.column}=...`, or give the test split a rule without it, as "
                        "`where_test`."
                    )
                raise self._error(leaf.span, f"{table} has no column {leaf.column!r}{hint}")
        self._bound(arrow, units)

    def _bound(self, arrow: pa.Schema, units: Mapping[str, str]) -> Bound:
        fields = tuple((name, arrow.field(name).type) for name in self.columns)
        return _bound(self.text, self.where, fields, tuple(sorted(units.items())))

    def _error(self, span: TextRange, message: str) -> RegistryError:
        return error_at(self.text, self.where, span, message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[Any, ...]:
        return expression, (self.text, self.where)


@lru_cache(maxsize=64)
def expression(text: str, where: str) -> Expression:
    """The expression of a text, which is parsed only once."""
    return Expression(text, where)


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
        kind = value_type(types[leaf.column])
        try:
            values = tuple(
                literal_in(value, kind, unit_of.get(leaf.column), leaf.column)
                for value in leaf.literals()
            )
        except OverflowError as error:
            message = f"no value of column {leaf.column!r}, which is {kind}, is as large."
            raise error_at(text, where, leaf.span, message) from error
        except (NotComparable, pa.ArrowException) as error:
            raise error_at(text, where, leaf.span, str(error)) from error
        found[leaf] = Test(values, pa.types.is_floating(kind))
    return found
