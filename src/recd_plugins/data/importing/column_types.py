"""The types as which text and lines of JSON are read, column by column; and wider types."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from recd_plugins.data.foreign import null_instead_of
from recd_plugins.data.importing.foreign_file import ForeignFile
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.errors import DataError, nearest

__all__ = [
    "MEND",
    "ColumnTypes",
    "Misfit",
    "as_pairs",
    "is_within",
    "key_problem",
    "wider",
    "with_ids",
]

WHOLE = re.compile(r"'-?\d+\.0*'")
MEND = "Correct this value, or take the line out."


@dataclass(frozen=True, kw_only=True)
class ColumnTypes:
    """The types as which text is read: a survey found them, and all blocks have the same."""

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """The type of each column; a column that is not named is text."""
    nulls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What stands for nothing in a column, in addition to `NULLS`; in a column of numbers, also
    what usually does: but NA may be a country."""
    parted: Mapping[str, str] = field(default_factory=dict)
    """The columns that are lists, with the separator of their elements."""
    whole: Mapping[str, str] = field(default_factory=dict)
    """The columns of texts that are not lists, with a separator if most look like lists: in another
    file all may look so."""
    decimal_commas: frozenset[str] = frozenset()
    """The columns of numbers like 3,5."""
    thousands: frozenset[str] = frozenset()
    """The columns of numbers like 12,345."""
    nested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns of lines of JSON that are fields of objects: the path to each, root first."""
    mixed: Mapping[str, str] = field(default_factory=dict)
    """The keys of lines of JSON that have values of several types, and the place of one that has
    another type than those before it: they are not read."""
    mappings: frozenset[str] = frozenset()
    """The objects of lines of JSON whose keys are ids: they are not read."""
    named: frozenset[str] = frozenset()
    """The columns whose values name something: there 007 and 7 differ."""

    def naming(
        self, columns: Collection[str], file: ForeignFile, time: str | None = None
    ) -> ColumnTypes:
        """The same types, but values of these columns name something: what looks like a time is
        then a text, as it is among texts, unless the column is that of the `time`; True in text is
        then a text, too, but not in lines of JSON."""
        named = frozenset(columns)
        if file.format == "parquet":
            return replace(self, named=named)
        types = {}
        for name, kind in self.types.items():
            inner = kind.value_type if pa.types.is_list(kind) else kind
            is_text = pa.types.is_timestamp(inner) and name != time
            is_text |= pa.types.is_boolean(inner) and file.format == "text"
            types[name] = with_ids(kind, pa.string()) if name in named and is_text else kind
        return replace(self, named=named, types=types)

    def having(self, column: str, kind: pa.DataType) -> ColumnTypes:
        """The same types, except for one column that has another type after all."""
        return replace(self, types={**self.types, column: kind})

    def form(self, given: TextForm, file: ForeignFile, columns: Collection[str]) -> TextForm:
        """The given form, and how these columns are read by it."""
        if file.format == "parquet":
            return given

        def read_so(names: Collection[str]) -> tuple[str, ...]:
            return tuple(sorted(one for one in names if one in columns and _is_number(one)))

        def _is_number(name: str) -> bool:
            return not pa.types.is_string(self.types[name])

        return replace(
            given,
            escapes=True if file.escapes else given.escapes,
            lists={
                name: separator
                for name, separator in sorted(self.parted.items())
                if name in columns and not pa.types.is_struct(self.types[name].value_type)
            }
            | {name: "" for name in sorted(self.whole) if name in columns},
            decimal_commas=read_so(self.decimal_commas),
            thousands=read_so(self.thousands),
        )


class Misfit(DataError):
    """A value that does not have its column's type, which a survey had found in a part of the
    rows."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column

    @property
    def is_whole(self) -> bool:
        """Whether the value is like 5.0, which is not a text: pandas writes 5 so if there are
        nulls."""
        return WHOLE.search(str(self)) is not None


def wider(
    read_as: ColumnTypes, error: Misfit, hashed: Collection[str], file: ForeignFile
) -> pa.DataType | None:
    """The type as which to read a column with a value that does not have its type; None if there is
    none. In text, ids and sessions that are `hashed` may become whole floats or texts, and other
    whole numbers fractions. In lines of JSON, ids may be beyond int64, or whole floats."""
    column = error.column
    kind = read_as.types.get(column)
    if kind is None or file.format == "parquet":
        return None
    inner = kind.value_type if pa.types.is_list(kind) else kind
    inner = inner.field(0).type if pa.types.is_struct(inner) else inner
    others = {pa.int64(): pa.float64()}
    if column in hashed and file.format == "jsonl":
        others = {pa.int64(): pa.uint64(), pa.uint64(): pa.float64()}
    elif column in hashed and not (error.is_whole and inner == pa.int64()):
        texts = with_ids(kind, pa.string())
        return None if texts == kind else texts
    wide = others.get(inner)
    return None if wide is None else with_ids(kind, wide)


def with_ids(kind: pa.DataType, ids: pa.DataType) -> pa.DataType:
    """The type of a column, of its lists or of their ids with weights, but with another type of
    ids."""
    if pa.types.is_list(kind):
        return pa.list_(with_ids(kind.value_type, ids))
    if pa.types.is_struct(kind):
        return pa.struct([kind.field(0).with_type(ids), kind.field(1)])
    return ids


def is_within(name: str, keys: Collection[str]) -> bool:
    """Whether a column is one of these keys, or a field of one."""
    return any(f"{name}.".startswith(f"{one}.") for one in keys)


def key_problem(name: str, read_as: ColumnTypes) -> tuple[str, str] | None:
    """What is wrong with a column that no line of JSON has, and the remedy; None if the column is
    known, even if lines lack it."""
    if name in read_as.types:
        return None
    if is_within(name, read_as.mixed):
        place = next(at for key, at in read_as.mixed.items() if is_within(name, [key]))
        what = f"has values of several types, as numbers and texts: it has another one in {place}"
        return what, "Write it with one type, or take it out of the schema."
    if name in read_as.mappings:
        return "is an object whose keys are ids", as_pairs(name)
    if cure := null_instead_of(name):
        return "is in no line", cure
    known = nearest(name, read_as.types)
    what = "is in no line, but the schema names it"
    return what, f"{known} Correct its name in the schema, or take it out."


def as_pairs(name: str) -> str:
    """How to make ids with weights of an object whose keys are ids."""
    path = "".join(
        f".{part}" if part.isidentifier() and part.isascii() else f"[{json.dumps(part)}]"
        for part in name.split(".")
    )
    path = path if path.startswith(".") else f".{path}"
    pairs = "(. // {}) | to_entries | map({id: .key, weight: .value})"
    program = shlex.quote(f"{path} |= ({pairs})")
    return f"Make ids with weights of it, which are a feature: jq -c {program} FILE"
