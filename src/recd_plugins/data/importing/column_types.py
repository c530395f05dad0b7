"""The types that text and lines of JSON are read as, column by column; and wider ones."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

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
MEND = "Mend this value, or take the line out."


@dataclass(frozen=True, kw_only=True)
class ColumnTypes:
    """The types that text is read as: a survey of it found them, and all of its blocks have the
    same."""

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """The type of each column; of those that are not named, text."""
    nulls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What else than `NULLS` stands for nothing in a column; among numbers, what does so in any: NA
    may be a country."""
    parted: Mapping[str, str] = field(default_factory=dict)
    """The columns that are lists, with what parts their elements."""
    whole: Mapping[str, str] = field(default_factory=dict)
    """The columns of texts that are no lists, with what parts most of these, if it does: those of
    another file may all look like lists."""
    decimal_commas: frozenset[str] = frozenset()
    """The columns of numbers as 3,5."""
    thousands: frozenset[str] = frozenset()
    """The columns of numbers as 12,345."""
    nested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns of lines of JSON that are fields of objects: where each lies, the root first."""
    mixed: frozenset[str] = frozenset()
    """The keys of lines of JSON that have values of several types: they are not read."""
    mappings: frozenset[str] = frozenset()
    """The objects of lines of JSON whose keys are ids: they are not read."""
    named: frozenset[str] = frozenset()
    """The columns whose values name something: there 007 is another than 7."""

    def naming(
        self, columns: Collection[str], file: ForeignFile, time: str | None = None
    ) -> ColumnTypes:
        """The same, but that values of these columns name something: what looks like a time is then
        a text, as it is beside others, unless it is the column of the `time`; so is True in text,
        but not in lines of JSON."""
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
        """The same, but for a column that is of another type after all."""
        return replace(self, types={**self.types, column: kind})

    def form(self, given: TextForm, file: ForeignFile, columns: Collection[str]) -> TextForm:
        """What was given, and how these columns are read by it."""
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
    """A value that is not of its column's type, which a survey had found in a part of the rows."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column

    @property
    def is_whole(self) -> bool:
        """Whether the value is as 5.0, which is no text: pandas writes 5 so beside a null."""
        return WHOLE.search(str(self)) is not None


def wider(
    read_as: ColumnTypes, error: Misfit, hashed: Collection[str], file: ForeignFile
) -> pa.DataType | None:
    """The type to read a column as of which a value is not of its type; None if there is none: ids
    and sessions of text that are `hashed` may be whole floats, or texts, and other whole numbers
    fractions. Of lines of JSON ids may be beyond int64, or whole floats."""
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
    """The type of a column, of its lists or of their ids with weights, but that ids are of
    another."""
    if pa.types.is_list(kind):
        return pa.list_(with_ids(kind.value_type, ids))
    if pa.types.is_struct(kind):
        return pa.struct([kind.field(0).with_type(ids), kind.field(1)])
    return ids


def is_within(name: str, keys: Collection[str]) -> bool:
    """Whether a column is one of these keys, or a field of one."""
    return any(f"{name}.".startswith(f"{one}.") for one in keys)


def key_problem(name: str, read_as: ColumnTypes) -> tuple[str, str] | None:
    """The fault of a column that no line of JSON has, though any may lack it; and the cure."""
    if name in read_as.types:
        return None
    if is_within(name, read_as.mixed):
        what = "has values of several types, as numbers and texts"
        return what, "Write it in one, or take it out of the schema."
    if name in read_as.mappings:
        return "is an object whose keys are ids", as_pairs(name)
    known = nearest(name, read_as.types)
    what = "is in no line, but the schema names it"
    return what, f"{known} Mend its name in the schema, or take it out."


def as_pairs(name: str) -> str:
    """What makes ids with weights of an object whose keys are ids."""
    path = "".join(
        f".{part}" if part.isidentifier() and part.isascii() else f"[{json.dumps(part)}]"
        for part in name.split(".")
    )
    path = path if path.startswith(".") else f".{path}"
    pairs = "(. // {}) | to_entries | map({id: .key, weight: .value})"
    program = shlex.quote(f"{path} |= ({pairs})")
    return f"Make ids with weights of it, which are a feature: jq -c {program} FILE"
