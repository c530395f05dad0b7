"""The rows of lines of delimited text, each column of the type that it is read as."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from recd_plugins.data.importing.column_types import MEND, ColumnTypes, Misfit
from recd_plugins.data.importing.encodings import BOM, ENCODE
from recd_plugins.data.importing.padded_codes import first_padded
from recd_plugins.data.importing.text_form import MORE_NULLS, NULLS
from recd_plugins.data.importing.text_lists import HEXADECIMAL, with_lists, without_zeros
from recd_plugins.data.importing.whole_lines import Lines, check_quotes_end
from recd_plugins.errors import DataError

__all__ = ["GROUPED", "TIME_FORMS", "text_rows", "without_commas"]

NEWLINE = b"\n"
CONTROLS = [bytes([one]) for one in range(31, 0, -1) if one not in b"\t\n\r"]
"""Characters that text hardly has."""
TIME_FORMS = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d")
"""The forms that times of text may have, beside those of ISO 8601."""
PARTS_OF_TIME = r"^\s*\d{4}/\d+/(?P<day>\d+)(?:\s+\d+:\d+(?::(?P<second>\d+))?)?\s*$"
"""Those of such a form in which Arrow lets numbers run over."""
GROUPED = r"^-?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d+)?$"
"""A number whose commas may part thousands, or one without."""
INVALID = re.compile(r"invalid value '(.*)'")
SEVERAL = re.compile(r"'-?\d+([|;])\d+(?:\1\d+)*'")
"""A list of whole numbers, where one is meant."""
ARROWS_ROW = re.compile(r"(?:In CSV column #(\d+): )?(?:CSV parse error: )?Row #(\d+): (.*)", re.S)


def text_rows(lines: Lines, columns: Sequence[str], read_as: ColumnTypes) -> pa.Table:
    """The named columns of the lines, in this order."""
    content, delimiter = _parted_by_one(lines)
    types = {name: read_as.types.get(name, pa.string()) for name in columns}
    commas = read_as.decimal_commas | read_as.thousands
    spelled = {*read_as.parted, *commas}
    read = {name: pa.string() if name in spelled else types[name] for name in columns}
    more = [*dict.fromkeys(text for texts in read_as.nulls.values() for text in texts)]

    def parsed(read: Mapping[str, pa.DataType] = read) -> pa.Table:
        return pa.csv.read_csv(
            pa.BufferReader(content),
            # One chunk on one thread: rows are numbered, and quoted line ends harmless.
            pa.csv.ReadOptions(
                column_names=list(lines.file.names), block_size=content.size + 1, use_threads=False
            ),
            pa.csv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if lines.file.quotes else False,
            ),
            pa.csv.ConvertOptions(
                column_types=read,
                include_columns=list(read),
                null_values=[*NULLS, *more],
                strings_can_be_null=not more,
                timestamp_parsers=[pa.csv.ISO8601, *TIME_FORMS],
            ),
        )

    try:
        try:
            table = parsed()
        except pa.ArrowInvalid as error:
            odd = INVALID.search(str(error))
            if odd is None or odd[1] not in MORE_NULLS:
                raise
            more = [*MORE_NULLS]  # which no sample showed among these numbers
            table = parsed()
    except pa.ArrowInvalid as error:
        raise _located(lines, str(error).replace(delimiter, lines.file.delimiter)) from None
    text = content.to_pybytes()
    integers = {name: pa.string() for name in columns if pa.types.is_integer(read[name])}
    if integers and _has_hexadecimals(text):
        for name, texts in zip(integers, parsed(integers).columns, strict=True):
            _check_decimal(lines, name, texts)
    times = {name: pa.string() for name in columns if pa.types.is_timestamp(read[name])}
    if times and b"/" in text:
        for name, texts in zip(times, parsed(times).columns, strict=True):
            _check_dates(lines, name, texts, table[name])
    named = [
        name
        for name in read_as.named.intersection(columns)
        if pa.types.is_integer(read[name]) or pa.types.is_floating(read[name])
    ]
    if named:
        _check_padded(lines, text, delimiter, named)
    check_quotes_end(lines, content, table.num_rows)
    for name in columns if more else ():
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


def _bare_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """The texts, whole numbers among them without the blanks around them, and without a fraction of
    zeros: where all are numbers, Arrow takes these away, and a number has one id whatever stands in
    other rows."""
    bare = without_zeros(pc.ascii_trim(texts, " \t"))
    if bare.equals(texts):  # as most are, which is seen fast
        return texts
    return pc.if_else(pc.match_substring_regex(bare, r"^-?\d+$"), bare, texts)


def _parted_by_one(lines: Lines) -> tuple[pa.Buffer, str]:
    """The lines, and the character that parts their fields: Arrow takes one, so another that no
    field has stands for several."""
    text, delimiter = lines.text, lines.file.delimiter
    if text.slice(0, min(len(BOM), text.size)).to_pybytes() == BOM:
        # That of the file is cut off: this is a field's, of which Arrow would take one away.
        text = pa.py_buffer(BOM + text.to_pybytes())
    if len(delimiter) == 1:
        return text, delimiter
    content = text.to_pybytes()
    free = next((one for one in CONTROLS if one not in content), None)
    if free is None:
        raise DataError(
            f"{lines.where}: has all control characters, so none can stand for {delimiter!r}. Is "
            "it text?"
        )
    return pa.py_buffer(content.replace(delimiter.encode(), free)), free.decode()


def _has_hexadecimals(text: bytes) -> bool:
    """Whether something is as 0x1F: text of numbers has no x at all, which is seen fast."""
    return any(sign in text and b"0" + sign in text for sign in (b"x", b"X"))


def _check_decimal(lines: Lines, name: str, texts: pa.ChunkedArray) -> None:
    """`Misfit` where a whole number is as 0x1F, which Arrow takes for 31, and others for a text."""
    odd = pc.index(pc.match_substring_regex(texts, HEXADECIMAL), True).as_py()
    if odd >= 0:
        where = f"{lines.file.path}:{lines.line_of_row(odd + 1)}"
        reason = f"{texts[odd].as_py()[:40]!r} is no decimal number"
        raise Misfit(f"{where}: column {name!r}: {reason}. {MEND}", name)


def _check_dates(lines: Lines, name: str, texts: pa.ChunkedArray, times: pa.ChunkedArray) -> None:
    """`Misfit` where a time of `TIME_FORMS` is none of a calendar or a clock, as 2024/02/31, which
    Arrow takes for the 2nd of March, and 24/01/05, which it takes for the year 24."""
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
    """`Misfit` where a number that names something is as 007, which Arrow takes for 7."""
    names = lines.file.names
    numbers = np.array([name in named for name in names])
    at, column = first_padded(text, delimiter, quotes=lines.file.quotes, named=numbers)
    if at >= 0:
        where = f"{lines.file.path}:{lines.first + text.count(NEWLINE, 0, at)}"
        code = text[at : at + 40].split(b"\n")[0].split(delimiter.encode())[0].decode().strip(' "')
        reason = f"{code!r} is another name than {code.lstrip('0') or '0'!r}"
        raise Misfit(f"{where}: column {names[column]!r}: {reason}. {MEND}", names[column])


def _numbers(texts: pa.ChunkedArray, decimals: bool) -> pa.ChunkedArray:
    """Numbers as Arrow spells them; `ArrowInvalid` where their commas are something else."""
    texts = pc.if_else(pc.is_in(texts, value_set=pa.array(MORE_NULLS)), None, texts)
    if decimals and pc.any(pc.match_substring(texts, ".")).as_py():
        raise pa.ArrowInvalid("a number has a point, where commas are decimal points")
    if not decimals:
        having = pc.utf8_trim_whitespace(texts.filter(pc.match_substring(texts, ",")))
        odd = having.filter(pc.invert(pc.match_substring_regex(having, GROUPED)))
        if len(odd):
            raise pa.ArrowInvalid(f"in {odd[0].as_py()[:40]!r} commas part no thousands")
    return without_commas(texts, decimals)


def without_commas(texts: pa.ChunkedArray, decimals: bool) -> pa.ChunkedArray:
    """Numbers as Arrow spells them, of such whose commas are decimal points, or part thousands."""
    return pc.utf8_trim_whitespace(pc.replace_substring(texts, ",", "." if decimals else ""))


def _located(lines: Lines, message: str) -> DataError:
    """Arrow's message with the file, the line and the column in front."""
    found = ARROWS_ROW.search(message)
    if found is None:
        return DataError(f"{lines.where}: cannot be read: {message}")
    column, row, reason = found.groups()
    where = f"{lines.file.path}:{lines.line_of_row(int(row))}"
    if column is None:
        return DataError(
            f"{where}: {reason[:200]}. Mend this line, or take it out; `--delimiter` says what "
            f"parts the fields, if {str(lines.file)!r} is wrong."
        )
    name = lines.file.names[int(column)]
    if several := SEVERAL.search(reason):
        return DataError(
            f"{where}: column {name!r} has a list, {several[0]}, where others have one value. Say "
            f'`text: {{lists: {{{name}: "{several[1]}"}}}}` in the schema.'
        )
    cure = ENCODE if "UTF8" in reason else MEND
    return Misfit(f"{where}: column {name!r}: {reason[:200]}. {cure}", name)
