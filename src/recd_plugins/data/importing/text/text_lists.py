"""Lists in text, such as 3|5, [3, 5], ['a', 'b'], {3,5} or 3:0.5|5:1."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.importing.column_types import MEND, ColumnTypes, Misfit
from recd_plugins.data.importing.text_form import MORE_NULLS, NULLS

__all__ = [
    "BRACKETED",
    "HEXADECIMAL",
    "less_texts",
    "split_texts",
    "with_lists",
    "without_zeros",
]

TEXTS = pa.list_(pa.string())
PAIR = r"^(?P<id>.*[^:\s]):(?P<weight>[^:]*)$"
"""An id with a weight, as text."""
PRINTED = ("None", "nan", "NaN", "<NA>")
"""How Python and NumPy print a null within a list."""
BRACKETED = r"^\s*[\[({]"
BRACES = r"^\s*\{([^{}]*)\}\s*$"
"""An array as Postgres writes it, or a set as Python does."""
QUOTED = r"""^\s*[\[({].*['"\\]"""
EMPTY_SET = r"^\s*set\(\)\s*$"
PLAIN = r"""('[^'",\\]*'|"[^'",\\]*"|[^'",\\]*)"""
PLAINLY_QUOTED = rf"^\s*[\[({{]{PLAIN}(,\s*{PLAIN})*[\])}}]\s*$"
"""A list whose quoted elements contain no commas, quotes or escapes."""
ELEMENT = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^,]*)\s*,""", re.DOTALL)
HEXADECIMAL = r"^\s*-?0[xX]"
"""What Arrow reads as a number, such as 0x1F as 31, while other programs take it for text."""
CODE = r"^\s*-?0[xX\d]"
"""The same, and what is text if it names something: 007 is another name than 7."""
WHOLE = r"^(?:-?(0)|(-?[1-9]\d*))\.0*$"
"""A whole number with a fraction of zeros, as pandas writes integers beside a null."""
LEFT_OUT = (
    "holds '...', where NumPy left out elements when it printed a list: write all of them, as "
    "numpy.set_printoptions(threshold=sys.maxsize) does"
)


def with_lists(
    table: pa.Table, where: str, columns: Sequence[str], read_as: ColumnTypes
) -> pa.Table:
    """The table, with the texts of list columns split into lists."""
    for name, separator in read_as.parted.items():
        if name in columns:
            kind = read_as.types.get(name, pa.string())
            texts = less_texts(table[name], read_as.nulls.get(name, ()))
            try:
                lists = split_texts(texts, separator, kind, named=name in read_as.named)
            except pa.ArrowInvalid as error:
                raise Misfit(f"{where}: column {name!r}: {error}. {MEND}", name) from None
            table = table.set_column(columns.index(name), name, lists)
    return table


def less_texts(texts: pa.ChunkedArray, nothing: Sequence[str]) -> pa.ChunkedArray:
    """The texts, with nulls in place of those in `nothing`."""
    if not nothing:
        return texts
    found = pc.is_in(texts, value_set=pa.array(nothing, pa.string()))
    return pc.if_else(found, pa.scalar(None, texts.type), texts)


def split_texts(
    texts: pa.ChunkedArray, separator: str, kind: pa.DataType, *, named: bool = False
) -> pa.ChunkedArray:
    """Lists of the type `kind` from texts in which a separator separates the elements; pairs of an
    id and a weight have a colon in between.

    An element that is empty, or spells a null, is a null; nothing follows a last separator. If
    elements are not texts, a text `-`, NA and the like is a null. Raises `ArrowInvalid` if an
    element does not have the type. If elements are `named`, 007 is not a number, and among texts
    11.0 is 11.
    """
    code = CODE if named else HEXADECIMAL
    if not pa.types.is_string(kind.value_type):
        texts = less_texts(texts, MORE_NULLS)
    chunks = []
    for chunk in texts.chunks:
        careful = separator == "," and _has_odd_quotes(chunk)
        lists = _split_by_quotes(chunk) if careful else _split(chunk, separator)
        elements = lists.values
        if pa.types.is_struct(kind.value_type):
            elements = _pairs(elements, kind.value_type, code, named=named)
        elif not pa.types.is_string(kind.value_type):
            _refuse_codes(elements, code)
            elements = elements.cast(kind.value_type)
        elif named:
            elements = without_zeros(elements)
        chunks.append(pa.ListArray.from_arrays(lists.offsets, elements, mask=lists.is_null()))
    return pa.chunked_array(chunks, pa.list_(kind.value_type))


def without_zeros(texts: pa.Array | pa.ChunkedArray) -> Any:
    """The texts, in which whole numbers lose a fraction of zeros: a column of numbers reads 11.0 as
    11, so the id is the same whatever other rows hold."""
    if not pc.any(pc.match_substring(texts, ".")).as_py():  # a fast check, true of most texts
        return texts
    return pc.replace_substring_regex(texts, WHOLE, r"\1\2")


def _split(texts: pa.Array, separator: str) -> pa.Array:
    """Lists of texts, split at every separator; none may be within quotes."""
    bare = texts
    if separator == ",":
        bare = pc.replace_substring_regex(bare, BRACES, r"\1")
    if separator == " ":  # NumPy aligns elements, and breaks lines
        bare = pc.replace_substring_regex(bare, r"\s+", " ")
    bare = pc.replace_substring_regex(bare, EMPTY_SET, "")
    bare = pc.utf8_trim(bare, " []()" if separator in ", " else " []")  # not of "(none)|Drama"
    empty = pc.fill_null(pc.equal(bare, ""), False)
    bare = pc.replace_substring_regex(bare, rf"{re.escape(separator)}$", "")
    parts = pc.split_pattern(bare, separator)
    elements = pc.utf8_trim(parts.values, " ")
    within = pc.match_substring_regex(texts, BRACKETED).take(pc.list_parent_indices(parts))
    if pc.any(pc.and_(within, pc.equal(elements, "..."))).as_py():
        raise pa.ArrowInvalid(LEFT_OUT)
    printed = pc.and_(within, pc.is_in(elements, value_set=pa.array(PRINTED)))
    nothing = pc.or_(printed, pc.is_in(elements, value_set=pa.array(NULLS)))
    elements = pc.if_else(nothing, None, pc.utf8_trim(elements, " '\""))
    lists = pa.ListArray.from_arrays(parts.offsets, elements, mask=parts.is_null())
    return pc.if_else(empty, pa.scalar([], TEXTS), lists)


def _has_odd_quotes(texts: pa.Array) -> bool:
    """Whether any list in brackets has commas, quotes or escapes within quotes."""
    quoted = texts.filter(pc.match_substring_regex(texts, QUOTED))
    return bool(pc.any(pc.invert(pc.match_substring_regex(quoted, PLAINLY_QUOTED))).as_py())


def _split_by_quotes(texts: pa.Array) -> pa.Array:
    """Lists of comma-separated texts, as JSON and Python write them; the same as `_split` returns
    if no comma is within quotes."""

    def split(text: str) -> list[str | None]:
        bare = re.sub(BRACES, r"\1", re.sub(EMPTY_SET, "", text)).strip(" []()")
        each = ELEMENT.finditer(f"{bare.removesuffix(',')},") if bare else ()
        return [_unquoted(found[1]) for found in each]

    return pa.array([None if text is None else split(text) for text in texts.to_pylist()], TEXTS)


def _unquoted(element: str) -> str | None:
    bare = element.strip(" ")
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "'\"":
        try:
            value = json.loads(bare) if bare[0] == '"' else ast.literal_eval(bare)
        except (ValueError, SyntaxError):
            value = bare[1:-1]
        return str(value).strip(" ")
    if bare == "...":
        raise pa.ArrowInvalid(LEFT_OUT)
    return None if bare in (*NULLS, *PRINTED) else bare.strip(" '\"")


def _refuse_codes(texts: pa.Array | pa.ChunkedArray, code: str) -> None:
    """Raise `ArrowInvalid` if a text matches `code`, such as 0x1F, which Arrow would read as 31, or
    007: it must stay a text, as it is in Parquet, where it has another hash."""
    odd = texts.filter(pc.match_substring_regex(texts, code))
    if len(odd):
        raise pa.ArrowInvalid(f"invalid value {odd[0].as_py()[:40]!r}")


def _pairs(texts: pa.Array, kind: pa.StructType, code: str, *, named: bool) -> pa.Array:
    """Ids and weights of the types in `kind`, split at the last colon."""
    found = pc.extract_regex(texts, PAIR)
    if found.null_count > texts.null_count:
        odd = texts.filter(pc.and_(found.is_null(), texts.is_valid()))[0].as_py()
        raise pa.ArrowInvalid(f"{odd[:80]!r} is no id with a weight, as 3:0.5")
    parts = []
    for one, part in zip(kind, found.flatten(), strict=True):
        bare = pc.utf8_trim(part, " '\"")
        if pa.types.is_integer(one.type):
            _refuse_codes(bare, code)
        elif named and pa.types.is_string(one.type):
            bare = without_zeros(bare)
        parts.append(pc.if_else(pc.equal(bare, ""), None, bare).cast(one.type))
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=texts.is_null())
