"""A survey of foreign files: what their columns seem to be, by a sample that is spread over
them."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.dates import text_dates
from recd_plugins.data.conform.values import MOST_EXACT, are_texts, is_list
from recd_plugins.data.foreign import TextDates
from recd_plugins.data.importing.column_types import ColumnTypes, with_ids
from recd_plugins.data.importing.filled_lists import filling
from recd_plugins.data.importing.foreign_file import ForeignFile
from recd_plugins.data.importing.sample import Sample, sample, undressed
from recd_plugins.data.importing.struct_fields import is_pair
from recd_plugins.data.importing.text_form import MORE_NULLS, TextForm
from recd_plugins.data.importing.text_lists import split_texts
from recd_plugins.data.importing.text_rows import GROUPED, TIME_FORMS, without_commas
from recd_plugins.errors import DataError, nearest

__all__ = ["ColumnSurvey", "Seems", "Survey", "id_type", "is_text", "survey"]

BOOLEANS = frozenset({"true", "false", "True", "False", "TRUE", "FALSE"})
SEPARATORS = ("|", ";", ",", "\t", " ")
SCORED = r"\s*[^\s|;,:]+:[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"
"""An id with a weight in text, as 3:0.5."""
MOST_PREFIXES = 3
"""The words that say of what kind the ids of a column are, at most."""
DECIMAL = r"^-?(0|[1-9]\d{0,17})?(,\d+)?([eE][-+]?\d+)?$"
"""A number with a decimal comma, or a whole one."""
NO_LIST = r",0(\d|\d{3,})$|^-?0,0\d\d$"
"""The end of 3,05 or of 3,0125, and 0,005: neither two ids nor thousands."""
NUMBER = r"^\s*[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\s*$"
CODE = r"[\w.-]*\d[\w.-]*"
"""An id with a digit, as N55189."""
CODES = rf"^({CODE}( {CODE})*)?$"
WHOLE_FLOAT = r"^\s*-?\d+(\.0*)?\s*$"
FOUR_CODES = rf"^{CODE}( {CODE}){{3}}"
"""Of fewer, as of SW1A 1AA, it is not clear that they are a list."""
BRACED = r"^(\{[^{}:]*\}|set\(\)|\(\s*-?\d+(\s*,\s*-?\d+)*\s*,?\s*\))$"
"""An array of Postgres or a set, or a tuple of numbers: {3,5} or (3, 5)."""
EXAMPLES = 3

CommasAre = Literal["decimals", "thousands"]

Seems = Literal["integers", "numbers", "texts", "booleans", "times", "scored ids", "unknown"]


@dataclass(frozen=True, kw_only=True)
class ColumnSurvey:
    """A column as a sample shows it."""

    name: str
    type: pa.DataType
    """The type that it is read as."""
    seems: Seems
    """The kind of its values, or of the elements of its lists."""
    is_list: bool
    width: int | None
    """The length of its lists, where all have the same."""
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
    """More than these there will not be: if values went on to be new as often as they last were."""
    low: Any = None
    high: Any = None
    lengths: tuple[int, float, int] | None = None
    """The lengths of lists: the shortest, the mean, the longest."""
    fills: int | str | None = None
    """The value by which its lists are filled up, where there is one; it is none of those that the
    rest of this is of."""
    gaps: int = 0
    """Elements of lists that are null, or not a number."""
    examples: tuple[str, ...] = ()
    two_valued: bool = False
    """Whether 0 and 1 are all of its values."""
    whole: bool = False
    """Whether all of its numbers are whole."""
    mean: float | None = None
    seen: pa.Array | None = None
    """The different values of the sample."""
    counts: np.ndarray[Any, np.dtype[np.int64]] | None = None
    """The rows, or elements of lists, that have each of these."""
    ascending: bool = False
    """Whether its values never fall, in the order of the rows."""
    dates: tuple[TextDates, ...] = ()
    """The forms of a date that all of its texts have."""

    @property
    def unique(self) -> bool:
        """Whether next to every value is another one."""
        return self.values >= 100 and self.distinct >= 0.98 * self.values

    @property
    def is_number(self) -> bool:
        """Whether each row has a number."""
        return not self.is_list and self.seems in ("integers", "numbers", "booleans")

    @property
    def may_name(self) -> bool:
        """Whether its values may name something, be they integers in floats."""
        exact = self.whole and self.high is not None and abs(self.high) < MOST_EXACT
        named = self.seems in ("integers", "texts") or (self.seems == "numbers" and exact)
        return not self.is_list and named


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Foreign files as a sample shows them."""

    files: tuple[ForeignFile, ...]
    rows: int
    """Rows of all files, about."""
    sampled: int
    """Rows that were looked at."""
    exact_rows: bool
    columns: tuple[ColumnSurvey, ...]
    read_as: ColumnTypes
    form: TextForm = field(default_factory=TextForm)
    """How text is read, as options and a schema have it."""
    doubts: tuple[str, ...] = ()
    """The questions that the sample does not settle."""
    sample: Mapping[str, pa.ChunkedArray] = field(default_factory=dict, repr=False, compare=False)
    """The rows that were looked at, by column."""


def survey(
    files: Sequence[ForeignFile],
    wanted: Collection[str] = (),
    *,
    alone: bool = False,
    form: TextForm | None = None,
    ids: Collection[str] = (),
) -> Survey:
    """Look at a bounded sample of the files; see `sample`.

    Of the columns that a schema has as `ids`, those whose commas part thousands are in the form:
    in others they part ids, as they did when the schema was made.
    """
    form = form or TextForm()
    found = sample(files, wanted, alone=alone)
    if not found.rows:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        raise DataError(f"{files[0].path}{more}: holds no rows. Take it out, or fetch it again.")
    _check_known(form, {*found.columns, *wanted})
    _check_headers(found)
    columns, read_as = _typed(found, files[0], form, ids)
    doubts = [*found.doubts]
    for name in columns:
        lacking = [file.path for file in found.files if name not in file.columns]
        if lacking and files[0].format != "jsonl":  # of which any line may lack any key
            doubts.append(
                f"{name!r} is not in {lacking[0]} ({len(lacking)} of {len(found.files)} files that "
                f"were looked at lack it): `recd data import --absent {name}`, or `absent` of the "
                "dataset, takes nulls for it there"
            )
    doubts += _comma_doubts(found, read_as, form)
    doubts += _nearly_numbers(columns) if files[0].format == "text" else ()
    twice = dict.fromkeys(name for file in files for name in file.renamed)
    doubts += [
        f"several columns are called {name!r}: all but the first got a number" for name in twice
    ]
    return Survey(
        files=tuple(files),
        rows=found.rows,
        sampled=found.sampled,
        exact_rows=found.exact_rows,
        columns=tuple(_column(name, column, found.rows) for name, column in columns.items()),
        read_as=read_as,
        form=form,
        doubts=tuple(doubts),
        sample=columns,
    )


def _check_known(form: TextForm, known: Collection[str]) -> None:
    for key in ("lists", "decimal_commas", "thousands"):
        for name in getattr(form, key):
            if name not in known:
                raise DataError(
                    f"text.{key} of the schema: no column is called {name!r}; "
                    f"{nearest(name, known)}"
                )
    for name, separator in form.lists.items():
        if not separator:
            raise DataError(f"text.lists of the schema: say what parts the elements of {name!r}.")


def _check_headers(found: Sample) -> None:
    """`DataError` if rows repeat the header, as where files were put one behind another."""
    file = found.files[0]
    own = [name for name in file.names if name in found.columns]
    if file.format != "text" or not file.header or len(own) < 2:
        return
    again = [pc.fill_null(pc.equal(found.columns[name], name), False) for name in own]
    if pc.any(reduce(pc.and_, again)).as_py():
        raise DataError(
            f"{file.path}: repeats its header among the rows. Take that out: awk 'NR == 1 "
            f"{{head = $0}} NR == 1 || $0 != head' {file.path.name} > {file.path.stem}.rows"
            f"{file.path.suffix}"
        )


def _nearly_numbers(columns: Mapping[str, pa.ChunkedArray]) -> Iterator[str]:
    """The columns of texts that are numbers but for a few, as of a line of totals."""
    for name, column in columns.items():
        if not pa.types.is_string(column.type):
            continue
        different = pc.unique(column).drop_null()
        odd = different.filter(pc.invert(pc.match_substring_regex(different, NUMBER)))
        share = pc.mean(pc.is_in(column.drop_null(), value_set=odd)).as_py() or 0.0
        if 0 < len(odd) <= 3 and share <= 0.01 and len(different) > len(odd):
            yield (
                f"{name!r} is taken for texts, since {odd[0].as_py()[:40]!r} is no number, as all "
                "but a few are: if it is of no row, take its line out"
            )


def _comma_doubts(found: Sample, read_as: ColumnTypes, form: TextForm) -> Iterator[str]:
    """What commas are taken for where no form has it, and what else they may be."""
    for name in sorted(read_as.decimal_commas.difference(form.decimal_commas)):
        may_be = _all_match(_comma_numbers(found.columns[name]), GROUPED)
        thousands = f"; if they part thousands, say `text: {{thousands: [{name}]}}` in the schema"
        yield f"{name!r}: its commas are taken for decimal points{thousands * may_be}"
    for name in sorted(read_as.thousands.difference(form.thousands)):
        yield (
            f"{name!r}: its commas are taken to part thousands; if they are decimal points, say "
            f"`text: {{decimal_commas: [{name}]}}` in the schema"
        )
    for name in sorted(read_as.parted.keys() - form.lists.keys()):
        if read_as.parted[name] == "," and _all_match(_comma_numbers(found.columns[name]), GROUPED):
            cure = f"say `text: {{thousands: [{name}]}}` in the schema"
            if found.files[0].format == "jsonl":  # whose numbers have no commas
                cure = "write numbers without them, and without quotes"
            yield f"{name!r}: its commas are taken to part ids; if they part thousands, {cure}"


def _typed(
    found: Sample, file: ForeignFile, form: TextForm, ids: Collection[str]
) -> tuple[dict[str, pa.ChunkedArray], ColumnTypes]:
    """The sample's columns in the types that they are read as, and these."""
    columns: dict[str, pa.ChunkedArray] = {}
    types: dict[str, pa.DataType] = {}
    parted: dict[str, str] = {}
    commas: dict[str, CommasAre] = {}
    nulls: dict[str, tuple[str, ...]] = {}
    names = dict.fromkeys((*file.names, *found.columns))
    for name in (one for one in names if one in found.columns):
        column = found.columns[name]
        own = name not in file.partitions
        if own and file.format != "parquet" and pa.types.is_string(column.type):
            are = _commas_are(name, column, file, form, ids)
            separator = " " if name in file.lists else "" if are else _separator(column, file)
            separator = form.lists.get(name, separator)
            if scored := _scored_separator(column):
                parted[name] = scored
                column = _scored_lists(column, scored)
            elif separator:
                parted[name] = separator
                try:
                    column = _lists(column, separator)
                except pa.ArrowInvalid as error:
                    raise DataError(f"{file.path}: column {name!r} {error}.") from None
            elif file.format == "text":
                bare = without_commas(column, are == "decimals") if are else column
                numbers, spelled = _numbers_or_times(bare)
                if are and not pa.types.is_string(numbers.type):
                    commas[name] = are
                if are == "decimals" and pa.types.is_integer(numbers.type):
                    numbers = numbers.cast(pa.float64())  # in other places they have fractions
                column = column if are and name not in commas else numbers
                if spelled:
                    nulls[name] = tuple(spelled)
            else:  # times that Arrow leaves texts, since they have fractions of seconds or a zone
                column = _times(column) or column
        columns[name] = column
        types[name] = column.type if file.format == "parquet" else _with_weights(column.type)
    read_as = ColumnTypes(
        types=types,
        nulls=nulls,
        parted=parted,
        decimal_commas=frozenset(name for name, are in commas.items() if are == "decimals"),
        thousands=frozenset(name for name, are in commas.items() if are == "thousands"),
        nested=found.keys.nested,
        mixed=frozenset(found.keys.mixed),
        mappings=frozenset(found.keys.mappings),
    )
    return columns, read_as


def _with_weights(kind: pa.DataType) -> pa.DataType:
    """The type, but that weights of ids may have fractions, as they may have in other places."""
    if not is_list(kind) or not is_pair(kind.value_type):
        return kind
    one, weight = kind.value_type
    return pa.list_(pa.struct([one, weight.with_type(pa.float64())]))


def _numbers_or_times(texts: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Sequence[str]]:
    """Texts in the narrowest type that holds all of them, and what else stands for nothing."""
    present = texts.drop_null()
    if not len(present):
        return texts, ()
    spelled = [one for one in MORE_NULLS if pc.any(pc.equal(present, one)).as_py()]
    if {"nan", "NaN"}.intersection(spelled):  # among integers they make no fractions
        less = pc.if_else(pc.is_in(texts, pa.array(spelled)), pa.scalar(None, pa.string()), texts)
        integers = _as_narrow(less)
        if integers is not None and pa.types.is_integer(integers.type):
            return integers, spelled
    for also in ((), spelled) if spelled else ((),):
        less = (
            pc.if_else(pc.is_in(texts, pa.array(also)), pa.scalar(None, pa.string()), texts)
            if also
            else texts
        )
        found = _as_narrow(less)
        if found is not None:
            return found, also
    return texts, ()


def _commas_are(
    name: str,
    texts: pa.ChunkedArray,
    file: ForeignFile,
    form: TextForm,
    ids: Collection[str],
) -> CommasAre | None:
    """What the commas of numbers are: as the form has it; decimal points where semicolons part
    fields; or the one thing that they can be."""
    if file.format != "text" or name in form.lists:
        return None
    if name in (*form.decimal_commas, *form.thousands):
        return "thousands" if name in form.thousands else "decimals"
    present = _comma_numbers(texts)

    def some(pattern: str) -> bool:
        return bool(pc.any(pc.match_substring_regex(present, pattern)).as_py())

    if not some(","):
        return None
    several = r"(,\d{3})+" if file.delimiter == ";" else ""
    if _all_match(present, GROUPED) and some(rf"{several},0\d\d(,|\.|$)|,\d{{3}}\.\d"):
        return None if name in ids else "thousands"
    if _all_match(present, DECIMAL) and (file.delimiter == ";" or some(NO_LIST)):
        return "decimals"
    return None


def _comma_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """What may be numbers: texts without what stands for nothing."""
    present = pc.utf8_trim_whitespace(texts.drop_null())
    return present.filter(pc.invert(pc.is_in(present, pa.array(MORE_NULLS))))


def _as_narrow(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    if texts.null_count == len(texts):
        return None
    trimmed = pc.utf8_trim_whitespace(texts)
    # Codes as 00123, 0x1F and 3e12 are no numbers, for programs write 3e+12; nor is one of more
    # digits than 64 bits have, and no float holds 19.
    code, long = (
        pc.any(pc.match_substring_regex(trimmed, pattern)).as_py()
        for pattern in (r"^-?0[\dxX]|^-?\d{20,}$|^\d+[eE]\d+$", r"^-?\d{19}$")
    )
    if not code:
        for kind in (pa.int64(),) if long else (pa.int64(), pa.float64()):
            try:
                return trimmed.cast(kind)
            except pa.ArrowInvalid:
                continue
    if set(pc.unique(trimmed).drop_null().to_pylist()[:8]) <= BOOLEANS:
        return pc.is_in(pc.utf8_lower(trimmed), pa.array(["true"]))
    found = _times(texts)
    if found is not None:
        return found
    if pc.all(pc.match_substring_regex(trimmed, r"^\d{4}/")).as_py():
        for form in TIME_FORMS:
            try:
                return pc.strptime(texts, form, "us")
            except pa.ArrowInvalid:
                continue
    return None


def _times(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Texts as times of ISO 8601, where all are such, with a zone or without."""
    if texts.null_count == len(texts):
        return None
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            continue
    return None


def _separator(texts: pa.ChunkedArray, file: ForeignFile) -> str:
    """The separator of elements, where texts look like lists; nothing where they do not."""
    present = pc.utf8_trim_whitespace(texts.drop_null().slice(0, 20_000))
    if not len(present):
        return ""
    brackets = _all_match(present, r"^\[[^{}]*\]$")  # of JSON objects it is no list
    bare = pc.utf8_trim(present, "[]") if brackets else present
    if _all_match(present, BRACED) and pc.mean(pc.match_substring(present, ",")).as_py() >= 0.2:
        return ","
    for separator in SEPARATORS:
        escaped = "\\" + separator if separator == "|" else separator
        if separator == ";" and pc.any(pc.match_substring_regex(bare, r"\([^()|]*;")).as_py():
            continue  # a browser: "Mozilla/5.0 (X11; Linux)"
        if separator == "\t" and (file.format != "text" or file.delimiter == "\t"):
            continue  # prose may have tabs, and what is in quotes
        several = pc.mean(pc.match_substring_regex(bare, f"{escaped}.")).as_py()
        # Words between blanks or commas are prose: only numbers are a list then.
        element = r"[^|;\t]+" if separator in "|;\t" else r"\s*-?\d+\s*"
        if brackets:
            element = r"[^,]*"
        pattern = f"^({element}({escaped}{element})*{escaped}?)?$"
        if several >= 0.2 and _all_match(bare, pattern):
            return separator
    if not brackets and _all_match(bare, CODES):
        several = pc.mean(pc.match_substring(bare, " ")).as_py()
        four = pc.any(pc.match_substring_regex(bare, FOUR_CODES)).as_py()
        return " " if four and several >= 0.2 else ""
    return "," if brackets else ""


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    """Whether a pattern fits all texts; where it does not, one of the first mostly says so."""
    return all(
        bool(pc.all(pc.match_substring_regex(some, pattern)).as_py())
        for some in (texts.slice(0, 100), texts)
    )


def _scored_separator(texts: pa.ChunkedArray) -> str:
    """The separator of ids and weights, where texts look like lists of them; nothing where they do
    not: a lone 12:30 is a time."""
    present = pc.utf8_trim_whitespace(texts.drop_null().slice(0, 20_000))
    bare = pc.utf8_trim(present, "[]")
    for separator in SEPARATORS:
        escaped = "\\" + separator if separator == "|" else separator
        pattern = f"^({SCORED}({escaped}{SCORED})*{escaped}?)?$"
        if _all_match(bare, pattern):
            marks = (separator, ".") if separator == SEPARATORS[0] else (separator,)
            if any(pc.any(pc.match_substring(bare, mark)).as_py() for mark in marks):
                return "" if _are_prefixes(bare, separator) else separator
    return ""


def _are_prefixes(texts: pa.ChunkedArray, separator: str) -> bool:
    """Whether what stands before the colons says of what kind ids are, as in `ad:31|ad:7`: it is
    one of few words, which most lists have again and again, and whole numbers follow."""
    lists = split_texts(texts, separator, pa.list_(pa.string())).combine_chunks()
    several = lists.filter(pc.greater(pc.list_value_length(lists), MOST_PREFIXES))
    pairs = pc.utf8_trim_whitespace(several.flatten())
    parts = pc.split_pattern(pairs.filter(pc.match_substring(pairs, ":")), ":")
    if not len(parts):
        return False
    before, after = (pc.list_element(parts, n) for n in (0, 1))
    if pc.any(pc.or_(_are_digits(before), pc.invert(_are_digits(after)))).as_py():
        return False
    found: bool = pc.count_distinct(before).as_py() <= MOST_PREFIXES
    return found


def _are_digits(texts: pa.Array) -> pa.Array:
    return pc.match_substring_regex(texts, "^[0-9]+$")


def _scored_lists(texts: pa.ChunkedArray, separator: str) -> pa.ChunkedArray:
    """Lists of ids with weights, the ids numbers where all are whole ones."""
    kind = pa.list_(pa.struct([("id", pa.string()), ("weight", pa.float64())]))
    lists = split_texts(texts, separator, kind)
    ids = id_type(pc.struct_field(pc.list_flatten(lists), "id"))
    return split_texts(texts, separator, with_ids(kind, ids))


def id_type(ids: pa.ChunkedArray) -> pa.DataType:
    """The type of ids that have weights: integers, floats that are whole, as 5.0, or texts; a code
    as 00123 is no number."""
    if ids.null_count == len(ids):
        return pa.int64()
    numbers = _as_narrow(ids)
    if numbers is None or not pa.types.is_floating(numbers.type):
        return pa.int64() if numbers is not None and numbers.type == pa.int64() else pa.string()
    return pa.float64() if _all_match(ids.drop_null(), WHOLE_FLOAT) else pa.string()


def _lists(texts: pa.ChunkedArray, separator: str) -> pa.ChunkedArray:
    lists = split_texts(texts, separator, pa.list_(pa.string()))
    elements = _as_narrow(pa.chunked_array([chunk.flatten() for chunk in lists.chunks]))
    if elements is not None and pa.types.is_integer(elements.type):
        return split_texts(texts, separator, pa.list_(pa.int64()))
    if elements is not None and pa.types.is_floating(elements.type):
        return split_texts(texts, separator, pa.list_(pa.float64()))
    return lists


def _column(name: str, column: pa.ChunkedArray, rows: int) -> ColumnSurvey:
    kind = column.type
    lengths, width = None, None
    lists = is_list(kind)
    values = column
    nulls = column.null_count
    if lists:
        counted = pc.list_value_length(column).drop_null().to_numpy()
        if counted.size:
            lengths = (int(counted.min()), float(counted.mean()), int(counted.max()))
            width = lengths[0] if lengths[0] == lengths[2] and lengths[0] > 0 else None
        values = pa.chunked_array([one.flatten() for one in column.chunks], kind.value_type)
    elif pa.types.is_map(kind):
        scored = _is_number(kind.item_type)
        return ColumnSurvey(
            name=name, type=kind, seems="scored ids" if scored else "unknown", is_list=True,
            width=None, rows=len(column), nulls=nulls, values=0, distinct=0, estimate=0,
        )  # fmt: skip
    values = _of_few_types(undressed(values))
    if pa.types.is_timestamp(values.type):  # those of Python have no nanoseconds
        values = values.cast(pa.timestamp("us", values.type.tz), safe=False)
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
    fills = None
    if lists and len(present):
        fills = filling(present, width if len(present) == len(values) else None)
        if fills is not None:
            present = present.filter(pc.not_equal(present, pa.scalar(fills, present.type)))
    if seems == "numbers":
        present = present.filter(pc.is_finite(present))
        nulls += 0 if lists else len(values) - values.null_count - len(present)
    counted = pc.value_counts(present.combine_chunks())
    counts = counted.field("counts").to_numpy(zero_copy_only=False)
    different = counted.field("values")
    expected = rows * (1.0 if lengths is None else lengths[1])
    expected = round(expected * len(present) / max(len(values), 1))
    low = high = mean = None
    whole = ascending = False
    if len(present) and seems in ("integers", "numbers", "times"):
        bounds = pc.min_max(present).as_py()
        low, high = bounds["min"], bounds["max"]
        numbers = present
        if seems == "times":  # a date is of 32 bits
            numbers = present.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        array = numbers.to_numpy()
        ascending = not lists and array.size > 1 and bool(np.all(array[1:] >= array[:-1]))
        if seems != "times":
            mean = float(array.mean())
            whole = bool(np.all(np.mod(array, 1) == 0))
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
        estimate=_estimate(counts, expected),
        most=_most(counts, expected),
        low=low,
        high=high,
        lengths=lengths,
        fills=fills,
        gaps=len(values) - len(present) if lists and fills is None else 0,
        examples=tuple(_shown(one.as_py()) for one in different[:EXAMPLES]),
        two_valued=seems in ("integers", "numbers", "booleans")
        and set(pc.unique(different).to_pylist()[:3]) == {0, 1},
        whole=whole,
        mean=mean,
        seen=different,
        counts=counts,
        ascending=ascending,
        dates=text_dates(different) if seems == "texts" and not lists else (),
    )


def _of_few_types(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values in a type that Arrow computes with: decimals are integers if they were written as such
    or are beyond 2^53, where floats skip some; bytes are texts if they are such, as Impala's."""
    kind = values.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        text = pa.types.is_string_view(kind)
        values = values.cast(pa.large_string() if text else pa.large_binary())
        kind = values.type
    if are_texts(kind) and not is_text(kind):
        try:
            texts = values.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return values
        odd = pc.any(pc.match_substring_regex(texts, r"[\x00-\x08]")).as_py()
        return values if odd else texts
    if pa.types.is_float16(kind):
        return values.cast(pa.float32())
    if not pa.types.is_decimal(kind):
        return values
    if not pa.types.is_decimal128(kind) and not pa.types.is_decimal256(kind):
        values = values.cast(pa.decimal128(kind.precision, kind.scale))
    ends = pc.min_max(values).as_py()
    if kind.scale == 0 or max(-(ends["min"] or 0), ends["max"] or 0) > MOST_EXACT:
        for whole in (pa.int64(), pa.uint64()):
            try:
                return values.cast(whole)
            except pa.ArrowInvalid:
                continue
    return values.cast(pa.float64())


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts, and no bytes."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


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


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _estimate(counts: np.ndarray[Any, np.dtype[np.int64]], values: int) -> int:
    """Chao's estimate of how many different values there are: d + f1² / 2 f2, by those that the
    sample has once and twice."""
    if not counts.size:
        return 0
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    sampled = int(counts.sum())
    if once == sampled:
        return values
    unseen = once * once / (2 * twice) if twice else once * (once - 1) / 2
    return int(min(len(counts) + unseen, len(counts) * max(1.0, values / sampled)))


def _most(counts: np.ndarray[Any, np.dtype[np.int64]], values: int) -> int:
    """d + f1 / n (N - n): by Good and Turing, f1 / n of the next values are new, and ever fewer."""
    once, sampled = int((counts == 1).sum()), int(counts.sum())
    return len(counts) + round(once / max(sampled, 1) * max(values - sampled, 0))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= 24 else f"{value[:21]}...")
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"0x{value[:8].hex()}{'...' if len(value) > 8 else ''}"
    return f"{value:g}" if isinstance(value, float) else str(value)
