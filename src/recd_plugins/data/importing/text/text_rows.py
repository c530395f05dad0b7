"""The rows in lines of delimited text, with each column in the type that it is read as."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from recd_plugins.data.importing.column_types import MEND, ColumnTypes, Misfit
from recd_plugins.data.importing.text.encodings import BOM, ENCODE
from recd_plugins.data.importing.text.padded_codes import first_padded
from recd_plugins.data.importing.text.text_lists import HEXADECIMAL, with_lists, without_zeros
from recd_plugins.data.importing.text.whole_lines import Lines, check_quotes_close, check_quotes_end
from recd_plugins.data.importing.text_form import MORE_NULLS, NULLS
from recd_plugins.errors import DataError

__all__ = ["GROUPED", "TIME_FORMS", "text_rows", "without_commas"]

NEWLINE = b"\n"
CONTROLS = [bytes([one]) for one in range(31, 0, -1) if one not in b"\t\n\r"]
"""Characters that text hardly ever has."""
TIME_FORMS = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d")
"""The forms that times in text may have, beside ISO 8601."""
PARTS_OF_TIME = r"^\s*\d{4}/\d+/(?P<day>\d+)(?:\s+\d+:\d+(?::(?P<second>\d+))?)?\s*$"
"""The parts of such a time that Arrow lets overflow."""
GROUPED = r"^-?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d+)?$"
"""A number whose commas may separate thousands, or one without commas."""
INVALID = re.compile(r"invalid value '(.*)'")
SEVERAL = re.compile(r"'-?\d+([|;])\d+(?:\1\d+)*'")
"""A list of whole numbers where one number is expected."""
ARROWS_ROW = re.compile(r"(?:In CSV column #(\d+): )?(?:CSV parse error: )?Row #(\d+): (.*)", re.S)


def text_rows(lines: Lines, columns: Sequence[str], read_as: ColumnTypes) -> pa.Table:
    """The named columns of the lines, in this order."""
    text = _parted_by_one(lines)
    types = {name: read_as.types.get(name, pa.string()) for name in columns}
    commas = read_as.decimal_commas | read_as.thousands
    spelled = {*read_as.parted, *commas}
    read = {name: pa.string() if name in spelled else types[name] for name in columns}
    nulls = [*dict.fromkeys(null for texts in read_as.nulls.values() for null in texts)]
    table, nulls = _parsed(text, read, nulls)
    _check_spellings(text, table, read, nulls, read_as.named)
    check_quotes_end(lines, text.content, table.num_rows)
    for name in columns if nulls else ():
        if pa.types.is_string(read[name]):
            nothing = pa.array([*NULLS, *read_as.nulls.get(name, ())])
            texts = pc.if_else(pc.is_in(table[name], value_set=nothing), None, table[name])
            table = table.set_column(columns.index(name), name, texts)
    for name in commas.intersection(columns):
        if not pa.types.is_string(types[name]):
            decimals = name in read_as.decimal_commas
            try:
                numbers = _numbers(table[name], decimals).cast(types[name])
            except pa.ArrowInvalid as error:
                raise Misfit(f"{lines.where}: column {name!r}: {error}. {MEND}", name) from None
            table = table.set_column(columns.index(name), name, numbers)
    for name in read_as.named.intersection(columns).difference(spelled):
        if pa.types.is_string(read[name]):
            table = table.set_column(columns.index(name), name, _bare_numbers(table[name]))
    return with_lists(table, lines.where, columns, read_as)


class _Text(NamedTuple):
    """Lines whose fields one character separates, as Arrow needs it."""

    lines: Lines
    content: pa.Buffer
    delimiter: str

    def read(self, types: Mapping[str, pa.DataType], nulls: Sequence[str]) -> pa.Table:
        """The columns in these types, in which `nulls` stand for nothing beside `NULLS`."""
        file = self.lines.file
        return pa.csv.read_csv(
            pa.BufferReader(self.content),
            # One chunk on one thread: rows have numbers, and line ends within quotes do no harm.
            pa.csv.ReadOptions(
                column_names=list(file.names), block_size=self.content.size + 1, use_threads=False
            ),
            pa.csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char='"' if file.quotes else False,
            ),
            pa.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[*NULLS, *nulls],
                strings_can_be_null=not nulls,
                timestamp_parsers=[pa.csv.ISO8601, *TIME_FORMS],
            ),
        )


def _parsed(
    text: _Text, types: Mapping[str, pa.DataType], nulls: list[str]
) -> tuple[pa.Table, list[str]]:
    """The text's columns in these types; and the nulls that it was read with, which are more where
    numbers have some that the sample showed none of."""
    try:
        try:
            return text.read(types, nulls), nulls
        except pa.ArrowInvalid as error:
            odd = INVALID.search(str(error))
            if odd is None or odd[1] not in MORE_NULLS:
                raise
            return text.read(types, MORE_NULLS), [*MORE_NULLS]
    except pa.ArrowInvalid as error:
        message = str(error).replace(text.delimiter, text.lines.file.delimiter)
        raise _located(text.lines, message) from None


def _check_spellings(
    text: _Text,
    table: pa.Table,
    types: Mapping[str, pa.DataType],
    nulls: Sequence[str],
    named: Collection[str],
) -> None:
    """Raise `Misfit` for what Arrow reads as another value than it spells, in a `table` of these
    types; the numbers of columns that are `named` name something."""
    content = text.content.to_pybytes()
    integers = {name: pa.string() for name, kind in types.items() if pa.types.is_integer(kind)}
    if integers and _has_hexadecimals(content):
        for name, texts in zip(integers, text.read(integers, nulls).columns, strict=True):
            _check_decimal(text.lines, name, texts)
    times = {name: pa.string() for name, kind in types.items() if pa.types.is_timestamp(kind)}
    if times and b"/" in content:
        for name, texts in zip(times, text.read(times, nulls).columns, strict=True):
            _check_dates(text.lines, name, texts, table[name])
    numbers = [
        name
        for name, kind in types.items()
        if name in named and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    ]
    if numbers:
        _check_padded(text.lines, content, text.delimiter, numbers)


def _bare_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """The texts, in which whole numbers lose blanks around them and a fraction of zeros.

    If all texts are numbers, Arrow removes these by itself. So a number has the same id whatever
    other rows hold.
    """
    bare = without_zeros(pc.ascii_trim(texts, " \t"))
    if bare.equals(texts):  # a fast check, true of most texts
        return texts
    return pc.if_else(pc.match_substring_regex(bare, r"^-?\d+$"), bare, texts)


def _parted_by_one(lines: Lines) -> _Text:
    """The lines, in which a delimiter of several characters is replaced by a character that no
    field has."""
    text, delimiter = lines.text, lines.file.delimiter
    if text.slice(0, min(len(BOM), text.size)).to_pybytes() == BOM:
        # The file's own is cut off already: this one belongs to a field, and Arrow would remove it.
        text = pa.py_buffer(BOM + text.to_pybytes())
    if len(delimiter) == 1:
        return _Text(lines, text, delimiter)
    content = text.to_pybytes()
    free = next((one for one in CONTROLS if one not in content), None)
    if free is None:
        raise DataError(
            f"{lines.where}: holds every control character, so none is free to stand for "
            f"{delimiter!r}. Check that it is text."
        )
    content = content.replace(delimiter.encode(), free)
    return _Text(lines, pa.py_buffer(content), free.decode())


def _has_hexadecimals(text: bytes) -> bool:
    """Whether the text may hold a number such as 0x1F; most numbers have no x, which is fast to
    check."""
    return any(sign in text and b"0" + sign in text for sign in (b"x", b"X"))


def _check_decimal(lines: Lines, name: str, texts: pa.ChunkedArray) -> None:
    """Raise `Misfit` if a whole number is like 0x1F, which Arrow reads as 31 and others as text."""
    odd = pc.index(pc.match_substring_regex(texts, HEXADECIMAL), True).as_py()
    if odd >= 0:
        where = f"{lines.file.path}:{lines.line_of_row(odd + 1)}"
        reason = f"{texts[odd].as_py()[:40]!r} is no decimal number"
        raise Misfit(f"{where}: column {name!r}: {reason}. {MEND}", name)


def _check_dates(lines: Lines, name: str, texts: pa.ChunkedArray, times: pa.ChunkedArray) -> None:
    """Raise `Misfit` if a time of `TIME_FORMS` does not exist, such as 2024/02/31, which Arrow
    reads as the 2nd of March, or 24/01/05, which it reads as the year 24."""
    parts = pc.extract_regex(texts, PARTS_OF_TIME)
    slashed = pc.and_(pc.match_substring(texts, "/"), pc.is_valid(times))
    day, second = (pc.struct_field(parts, part) for part in ("day", "second"))
    second = pc.if_else(pc.equal(second, ""), "0", second)
    alike = pc.and_(
        pc.equal(day.cast(pa.int64()), pc.day(times)),
        pc.equal(second.cast(pa.int64()), pc.second(times)),
    )
    odd = pc.index(pc.and_(slashed, pc.invert(pc.fill_null(alike, False))), True).as_py()
    if odd >= 0:
        where = f"{lines.file.path}:{lines.line_of_row(odd + 1)}"
        reason = f"{texts[odd].as_py()[:40]!r} is no time, as 2024/05/31 13:05:00 is"
        raise Misfit(f"{where}: column {name!r}: {reason}. {MEND}", name)


def _check_padded(lines: Lines, text: bytes, delimiter: str, named: Collection[str]) -> None:
    """Raise `Misfit` if a number that names something is like 007, which Arrow reads as 7."""
    names = lines.file.names
    numbers = np.array([name in named for name in names])
    at, column = first_padded(text, delimiter, quotes=lines.file.quotes, named=numbers)
    if at >= 0:
        where = f"{lines.file.path}:{lines.first + text.count(NEWLINE, 0, at)}"
        code = text[at : at + 40].split(b"\n")[0].split(delimiter.encode())[0].decode().strip(' "')
        reason = f"{code!r} is another name than {code.lstrip('0') or '0'!r}"
        raise Misfit(f"{where}: column {names[column]!r}: {reason}. {MEND}", names[column])


def _numbers(texts: pa.ChunkedArray, decimals: bool) -> pa.ChunkedArray:
    """Numbers as Arrow spells them; raises `ArrowInvalid` if their commas mean something else."""
    texts = pc.if_else(pc.is_in(texts, value_set=pa.array(MORE_NULLS)), None, texts)
    if decimals and pc.any(pc.match_substring(texts, ".")).as_py():
        raise pa.ArrowInvalid("a number has a point, where commas are decimal points")
    if not decimals:
        having = pc.utf8_trim_whitespace(texts.filter(pc.match_substring(texts, ",")))
        odd = having.filter(pc.invert(pc.match_substring_regex(having, GROUPED)))
        if len(odd):
            raise pa.ArrowInvalid(f"in {odd[0].as_py()[:40]!r} commas separate no thousands")
    return without_commas(texts, decimals)


def without_commas(texts: pa.ChunkedArray, decimals: bool) -> pa.ChunkedArray:
    """Numbers as Arrow spells them, from numbers whose commas are decimal points or separate
    thousands."""
    return pc.utf8_trim_whitespace(pc.replace_substring(texts, ",", "." if decimals else ""))


def _located(lines: Lines, message: str) -> DataError:
    """An error of Arrow's message, preceded by the file, the line and the column."""
    found = ARROWS_ROW.search(message)
    if found is None:
        return DataError(
            f"{lines.where}: cannot be read ({message}). Correct these lines, or take them out."
        )
    column, row, reason = found.groups()
    where = f"{lines.file.path}:{lines.line_of_row(int(row))}"
    if column is None:
        check_quotes_close(lines)
        return DataError(
            f"{where}: {reason[:200]}. Correct this line, or take it out; give the delimiter by "
            f"`--delimiter`, if {str(lines.file)!r} is wrong."
        )
    name = lines.file.names[int(column)]
    if several := SEVERAL.search(reason):
        return DataError(
            f"{where}: column {name!r} has a list, {several[0]}, where others have one value. Say "
            f'`text: {{lists: {{{name}: "{several[1]}"}}}}` in the schema.'
        )
    cure = ENCODE if "UTF8" in reason else MEND
    return Misfit(f"{where}: column {name!r}: {reason[:200]}. {cure}", name)
