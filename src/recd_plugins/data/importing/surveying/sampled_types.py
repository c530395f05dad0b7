"""The types that the columns of a sample are read as: of texts, those of what they spell."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.values import is_list
from recd_plugins.data.importing.column_types import ColumnTypes, with_ids
from recd_plugins.data.importing.foreign_file import ForeignFile
from recd_plugins.data.importing.struct_fields import is_pair
from recd_plugins.data.importing.surveying.sample import Sample
from recd_plugins.data.importing.text.text_lists import BRACKETED, less_texts, split_texts
from recd_plugins.data.importing.text.text_rows import GROUPED, TIME_FORMS, without_commas
from recd_plugins.data.importing.text_form import MORE_NULLS, TextForm
from recd_plugins.errors import DataError

__all__ = ["all_match", "comma_numbers", "id_type", "typed"]

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
CODE = r"[\w.-]*\d[\w.-]*"
"""An id with a digit, as N55189."""
CODES = rf"^({CODE}( {CODE})*)?$"
WHOLE_FLOAT = r"^\s*-?\d+(\.0*)?\s*$"
FOUR_CODES = rf"^{CODE}( {CODE}){{3}}"
"""Four codes are a list; of fewer, as SW1A 1AA, that is not clear."""
SOME, MOST = 0.2, 0.5
"""The shares of texts that are lists of several, and that look like lists, in a column of them."""
BRACED = r"^(\{[^{}:]*\}|set\(\)|\(\s*-?\d+(\s*,\s*-?\d+)*\s*,?\s*\))$"
"""An array of Postgres or a set, or a tuple of numbers: {3,5} or (3, 5)."""

CommasAre = Literal["decimals", "thousands"]


def typed(
    found: Sample, file: ForeignFile, form: TextForm, ids: Collection[str]
) -> tuple[dict[str, pa.ChunkedArray], ColumnTypes]:
    """The sample's columns in the types that they are read as, and these."""
    found_as: dict[str, _Typed] = {}
    whole: dict[str, str] = {}
    names = dict.fromkeys((*file.names, *found.columns))
    for name in (one for one in names if one in found.columns):
        one = _Typed(found.columns[name])
        own = name not in file.partitions
        if own and file.format != "parquet" and pa.types.is_string(one.column.type):
            one = _typed_texts(name, one.column, file, form, ids)
            if pa.types.is_string(one.column.type):
                whole |= {name: ""} if name in form.lists else _nearly_lists(name, one.column)
        found_as[name] = one
    columns = {name: one.column for name, one in found_as.items()}
    types = {name: column.type for name, column in columns.items()}
    if file.format != "parquet":
        types = {name: _with_weights(kind) for name, kind in types.items()}
    read_as = ColumnTypes(
        types=types,
        nulls={name: one.nulls for name, one in found_as.items() if one.nulls},
        parted={name: one.parted for name, one in found_as.items() if one.parted},
        decimal_commas=frozenset(n for n, one in found_as.items() if one.commas == "decimals"),
        thousands=frozenset(n for n, one in found_as.items() if one.commas == "thousands"),
        whole=whole,
        nested=found.keys.nested,
        mixed=found.keys.mixed,
        mappings=frozenset(found.keys.mappings),
    )
    return columns, read_as


class _Typed(NamedTuple):
    """A column in the type that it is read as, and how its texts are read."""

    column: pa.ChunkedArray
    parted: str = ""
    """The separator of the elements of its lists."""
    commas: CommasAre | None = None
    nulls: tuple[str, ...] = ()
    """What else than `NULLS` stands for nothing."""


def _typed_texts(
    name: str, texts: pa.ChunkedArray, file: ForeignFile, form: TextForm, ids: Collection[str]
) -> _Typed:
    """A column of texts as what all of them spell: lists, numbers, booleans or times."""
    commas = _commas_are(name, texts, file, form, ids)
    separator = " " if name in file.lists else "" if commas else _separator(texts, file)
    separator = form.lists.get(name, separator)
    scored = "" if form.lists.get(name) == "" else _scored_separator(texts)
    if scored:
        return _Typed(_scored_lists(texts, scored), parted=scored)
    if separator:
        try:
            lists, spelled = _lists(texts, separator)
        except pa.ArrowInvalid as error:
            raise DataError(f"{file.path}: column {name!r} {error}.") from None
        return _Typed(lists, parted=separator, nulls=tuple(spelled))
    if file.format != "text":  # Arrow leaves times texts that have fractions of seconds or a zone
        return _Typed(_times(texts) or texts)
    bare = without_commas(texts, commas == "decimals") if commas else texts
    numbers, spelled = _numbers_or_times(bare)
    if commas and pa.types.is_string(numbers.type):
        return _Typed(texts, nulls=tuple(spelled))
    if commas == "decimals" and pa.types.is_integer(numbers.type):
        numbers = numbers.cast(pa.float64())  # in other places they have fractions
    return _Typed(numbers, commas=commas, nulls=tuple(spelled))


def _with_weights(kind: pa.DataType) -> pa.DataType:
    """The type, but that weights of ids may have fractions, as they may have in other places."""
    if not is_list(kind) or not is_pair(kind.value_type):
        return kind
    one, weight = kind.value_type
    return pa.list_(pa.struct([one, weight.with_type(pa.float64())]))


def _numbers_or_times(texts: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Sequence[str]]:
    """Texts in the narrowest type that holds all of them, and what else stands for nothing."""
    if texts.null_count == len(texts):
        return texts, ()
    spelled = _nothing_spelled(texts)
    if {"nan", "NaN"}.intersection(spelled):  # among integers they make no fractions
        integers = _as_narrow(less_texts(texts, spelled))
        if integers is not None and pa.types.is_integer(integers.type):
            return integers, spelled
    for also in ((), spelled) if spelled else ((),):
        found = _as_narrow(less_texts(texts, also))
        if found is not None:
            return found, also
    return texts, ()


def _nothing_spelled(texts: pa.ChunkedArray) -> list[str]:
    """What else than `NULLS` may stand for nothing among these."""
    return [one for one in MORE_NULLS if pc.any(pc.equal(texts, one)).as_py()]


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
    present = comma_numbers(texts)

    def some(pattern: str) -> bool:
        return bool(pc.any(pc.match_substring_regex(present, pattern)).as_py())

    if not some(","):
        return None
    several = r"(,\d{3})+" if file.delimiter == ";" else ""
    if all_match(present, GROUPED) and some(rf"{several},0\d\d(,|\.|$)|,\d{{3}}\.\d"):
        return None if name in ids else "thousands"
    if all_match(present, DECIMAL) and (file.delimiter == ";" or some(NO_LIST)):
        return "decimals"
    return None


def comma_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
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
        return pc.equal(pc.utf8_lower(trimmed), "true")  # null where there is no text
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
    """The separator of elements, where texts look like lists, but for those that stand for nothing;
    nothing where they do not."""
    present = comma_numbers(texts.drop_null().slice(0, 20_000))
    if not len(present):
        return ""
    brackets = all_match(present, r"^\[[^{}]*\]$")  # of JSON objects it is no list
    bare = pc.utf8_trim(present, "[]") if brackets else present
    if all_match(present, BRACED) and pc.mean(pc.match_substring(present, ",")).as_py() >= 0.2:
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
        if several >= SOME and all_match(bare, pattern):
            return separator
    if not brackets and all_match(bare, CODES):
        several = pc.mean(pc.match_substring(bare, " ")).as_py()
        four = pc.any(pc.match_substring_regex(bare, FOUR_CODES)).as_py()
        return " " if four and several >= 0.2 else ""
    return "," if brackets else ""


def _nearly_lists(name: str, texts: pa.ChunkedArray) -> dict[str, str]:
    """The column with what parts most of its texts, if they look like lists: those of another file
    may all do so."""
    present = comma_numbers(texts.drop_null().slice(0, 20_000))

    def share(pattern: str) -> float:
        return pc.mean(pc.match_substring_regex(present, pattern)).as_py() or 0.0

    if share(r"^\[[^{}]*\]$") >= MOST:
        return {name: ","}
    for separator in SEPARATORS:
        sign = "\\|" if separator == "|" else separator
        element = r"[^|;\t]+" if separator in "|;\t" else r"\s*-?\d+\s*"
        browsers = separator == ";" and share(r"\([^()|]*;")
        pattern = f"^{element}({sign}{element})*{sign}?$"
        if not browsers and share(f"{sign}.") >= SOME and share(pattern) >= MOST:
            return {name: separator}
    return {}


def all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    """Whether a pattern fits all texts; where it does not, one of the first mostly says so."""
    return all(
        bool(pc.all(pc.match_substring_regex(some, pattern)).as_py())
        for some in (texts.slice(0, 100), texts)
    )


def _scored_separator(texts: pa.ChunkedArray) -> str:
    """The separator of ids and weights, where texts look like lists of them; nothing where they do
    not: a lone 12:30 is a time."""
    bare = pc.utf8_trim(comma_numbers(texts.drop_null().slice(0, 20_000)), "[]")
    for separator in SEPARATORS:
        escaped = "\\" + separator if separator == "|" else separator
        pattern = f"^({SCORED}({escaped}{SCORED})*{escaped}?)?$"
        if all_match(bare, pattern):
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
    return pa.float64() if all_match(ids.drop_null(), WHOLE_FLOAT) else pa.string()


def _lists(texts: pa.ChunkedArray, separator: str) -> tuple[pa.ChunkedArray, Sequence[str]]:
    """The lists, and what stands for none: among numbers, codes, or lists in brackets, what does so
    in a column of numbers. Among words it is one."""
    spelled = _nothing_spelled(texts)
    less = less_texts(texts, spelled)
    lists = split_texts(less, separator, pa.list_(pa.string()))
    elements = _as_narrow(pa.chunked_array([chunk.flatten() for chunk in lists.chunks]))
    if elements is not None and pa.types.is_integer(elements.type):
        return split_texts(less, separator, pa.list_(pa.int64())), spelled
    if elements is not None and pa.types.is_floating(elements.type):
        return split_texts(less, separator, pa.list_(pa.float64())), spelled
    if spelled and not any(all_match(less.drop_null(), one) for one in (BRACKETED, CODES)):
        return split_texts(texts, separator, pa.list_(pa.string())), ()
    return lists, spelled
