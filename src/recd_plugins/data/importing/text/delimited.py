"""Delimited text by its first lines: what separates its fields, and whether the first line names
them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Literal

from recd_plugins.data.importing.foreign_file import ForeignFile, own_names, shell_files
from recd_plugins.data.importing.text.escaped_quotes import doubled, has_escapes
from recd_plugins.data.importing.text_form import MORE_NULLS, NULLS, TextForm
from recd_plugins.errors import DataError, shown, so_many
from recd_plugins.storage.uri import Location

__all__ = ["HEAD_LINES", "check_delimiter", "delimited_file"]

HEAD_LINES = 200
DELIMITERS = ("\t", ",", ";", "|", "\x01", "::")
ONE_CHARACTER = "".join(one for one in DELIMITERS if len(one) == 1)
QUOTED = re.compile(r'(^|\t)"(?:[^"\t]|"")*"(\t|\r?$)', re.MULTILINE)
"""A field in quotes, if tabs separate fields."""
QUOTING = re.compile(r'(^|\t)"?[^"\t\n]+"[^"\t\r\n]', re.MULTILINE)
"""Such a field with a quote in it that is not doubled."""
SEPARATOR = re.compile(r"sep=.\r?\n", re.IGNORECASE)
TYPED = re.compile(r"(?P<name>.+):(?P<type>token|float|token_seq|float_seq)")
"""RecBole's headers say what a column holds: user_id:token."""
WORD = re.compile(r"[^\W\d][\w .:/\-()\[\]]*")
"""What the name of a column looks like."""
ODD_WORD = re.compile(r"[^\d\s.,;+\-'\"][^\t\n]{0,79}")
"""What a name may also look like if the numbers below show that it is one."""
LONG_WORD = re.compile(r"[^\W\d_]{3}")
DECIMAL = re.compile(r"\s*-?\d+(,\d+)?\s*")
"""A number with a decimal comma, or a whole number."""


def delimited_file(
    path: Location,
    text: str,
    compression: str | None,
    bom: int,
    form: TextForm,
    encoding: str,
) -> ForeignFile:
    """The file that begins with this text, after a byte order mark of this many bytes.

    If its lines are not those of a table, a `DataError` says what kind of text it is.
    """
    escapes = has_escapes(text) if form.escapes is None else form.escapes
    if not escapes:
        return _text(path, text, compression, bom, form, encoding)
    as_doubled = doubled(text.encode(), form.delimiter or ONE_CHARACTER).decode()
    file = _text(path, as_doubled, compression, bom, form, encoding)
    if file.quotes if form.escapes else _may_quote(text, file.delimiter):
        return replace(file, escapes=True)
    if form.escapes and '"' in text:
        raise _no_quotes(path, text, file)
    return _text(path, text, compression, bom, form, encoding)


def _text(
    path: Location,
    text: str,
    compression: str | None,
    bom: int,
    form: TextForm,
    encoding: str,
) -> ForeignFile:
    delimiter = form.delimiter or _delimiter(text)
    quotes = _may_quote(text, delimiter)
    rows = list(_rows(text, delimiter, quotes))
    first = rows[0]
    _check_first(path, text, rows, delimiter)
    if form.delimiter is None:
        _check_no_blanks(path, rows)
    header = form.header
    typed = [TYPED.fullmatch(field) for field in first]
    all_typed = all(typed) and header is not False
    if header is None:
        header = all_typed or _is_header(first, rows[1:], delimiter)
    if not header:
        return ForeignFile(
            path=path,
            format="text",
            encoding=encoding,
            compression=compression,
            names=tuple(f"column_{number}" for number in range(1, len(first) + 1)),
            delimiter=delimiter,
            quotes=quotes,
            header=False,
            start=bom,
        )
    plain = [one["name"] for one in typed if one] if all_typed else first
    names, renamed = own_names([name.strip() for name in plain])
    above = _through_first_row(text, delimiter, quotes)
    lists = [
        name
        for name, one in zip(names, typed, strict=True)
        if all_typed and one and one["type"].endswith("_seq")
    ]
    return ForeignFile(
        path=path,
        format="text",
        encoding=encoding,
        compression=compression,
        names=names,
        delimiter=delimiter,
        quotes=quotes,
        header=True,
        lists=tuple(lists),
        start=bom + len(above.encode(encoding)),
        lines_before=above.count("\n"),
        renamed=renamed,
    )


def _no_quotes(path: Location, text: str, file: ForeignFile) -> DataError:
    """The error for a form that says how quotes are read, for text in which they are plain
    characters."""
    found = QUOTING.search(text) if file.delimiter == "\t" else None
    line = 1 + text.count("\n", 0, text.index('"') if found is None else found.end() - 1)
    odd = text.split("\n")[line - 1].strip()
    return DataError(
        f"{path}:{line}: `text: {{escapes: true}}` of the schema says how quotes within quotes are "
        f"read, but in this file quotes are part of the text, as in {shown(odd[:80])}. Import this "
        "file by itself, with a schema without `escapes`; or put each field that has a quote into "
        "quotes."
    )


def _check_no_blanks(path: Location, rows: Sequence[Sequence[str]]) -> None:
    """Raises `DataError` if the name of the only column has as many words as each of its rows."""
    words = [row[0].split() for row in rows if len(row) == 1]
    if len(words) < max(2, len(rows)) or len({*map(len, words)}) > 1 or len(words[0]) < 2:
        return
    named = len({*words[0]}) == len(words[0]) and all(map(WORD.fullmatch, words[0]))
    if named and _any_number(words[1:]):
        raise DataError(
            f"{path}: blanks seem to separate the fields of its lines. If each line is one field, "
            "give `--delimiter ,`; otherwise separate the fields by tabs: sed -E 's/^ +//; s/ "
            f"+/\\t/g' {shell_files(path, f'{path.stem}.rows.tsv')}"
        )


def _check_first(path: Location, text: str, rows: Sequence[Sequence[str]], delimiter: str) -> None:
    """Raises `DataError` if a first line does not have the same number of fields as those below,
    which all have the same."""
    rest = shell_files(path, f"{path.stem}.rows{path.suffix}")
    if SEPARATOR.match(text):
        raise DataError(
            f"{path}: its first line names the delimiter, as Excel writes it. Take it out: tail -n "
            f"+2 {rest}"
        )
    below = [len(row) for row in rows[1:]]
    if len(below) < 2 or (usual := max({*below}, key=below.count)) == len(rows[0]):
        return
    if below.count(usual) >= 0.9 * len(below):
        if len(delimiter) == 1 and f'{delimiter} "' in text:
            raise DataError(
                f"{path}: has blanks before quotes, which then quote nothing. Take them out: "
                f"sed -E 's/{re.escape(delimiter)} +\"/{delimiter}\"/g' {rest}"
            )
        line = text.lstrip("\r\n").split("\n", 1)[0].strip()
        fields = f"{so_many(len(rows[0]), 'field')}"
        raise DataError(
            f"{path}: its first line has {fields}, {shown(line[:80])}, and those below have "
            f"{usual}. If it names the columns, it must name each; if it does not belong to the "
            f"table, take it out: tail -n +2 {rest}"
        )


def check_delimiter(delimiter: str) -> None:
    odd = not delimiter.isascii() or not {*'"\n\r\0'}.isdisjoint(delimiter)
    several = len(delimiter) > 1 and any(one.isalnum() for one in delimiter)
    if not delimiter or odd or several:
        raise DataError(
            f"delimiter {shown(delimiter)}: fields are separated by one character of ASCII, such "
            "as ',' or '\\t', or by several signs, such as '::', without quotes and line ends."
        )


def _delimiter(text: str) -> str:
    """The delimiter that splits the lines, above all the first, into the same and largest number of
    fields: numbers like 3,5 may have commas too, but names have none."""
    best, fits = ",", (False, 1)
    for candidate in DELIMITERS:
        counts = [len(row) for row in _rows(text, candidate, _may_quote(text, candidate))]
        usual = max(set(counts), key=counts.count)
        found = (counts[0] == usual, usual)
        if usual > 1 and found > fits and counts.count(usual) >= 0.9 * len(counts):
            best, fits = candidate, found
    return best


def _may_quote(text: str, delimiter: str) -> bool:
    """Whether a field may be in quotes. Between tabs it may if some fields look so, and in none
    quotes are a part of it, as in 12" Mix; between delimiters of several characters it may not."""
    if delimiter == "\t":
        if '"' not in text or QUOTING.search(text) is not None:
            return False
        if QUOTED.search(text) is not None:
            return True
        within, not_within = (
            {*map(len, _rows(text, delimiter, quotes))} for quotes in (True, False)
        )
        return len(within) == 1 < len(not_within)  # tabs in quotes
    return len(delimiter) == 1


def _rows(text: str, delimiter: str, quotes: bool) -> Iterator[list[str]]:
    if len(delimiter) > 1:
        yield from _split_lines(text, delimiter)
        return
    found = 0
    try:
        for row in islice(
            filter(None, _reader(io.StringIO(text, newline=""), delimiter, quotes)), HEAD_LINES
        ):
            found += 1
            yield row
    except csv.Error:  # a field of more than 128 KiB
        if not found:
            yield from _split_lines(text, delimiter)


def _split_lines(text: str, delimiter: str) -> Iterator[list[str]]:
    each = (line.removesuffix("\r") for line in text.split("\n"))
    return islice((line.split(delimiter) for line in each if line), HEAD_LINES)


def _reader(lines: io.StringIO, delimiter: str, quotes: bool) -> Iterator[list[str]]:
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quoting=quoting)


def _through_first_row(text: str, delimiter: str, quotes: bool) -> str:
    """The text up to the end of its first row: empty lines may come before it, and its quotes may
    contain ends of lines."""
    lines = io.StringIO(text, newline="")
    if len(delimiter) == 1:
        with suppress(csv.Error):  # a field of more than 128 KiB
            next(filter(None, _reader(lines, delimiter, quotes)))
            return text[: lines.tell()]
    begins = len(text) - len(text.lstrip("\r\n"))
    return text[: (text.find("\n", begins) + 1) or None]


def _is_header(first: Sequence[str], rest: Sequence[Sequence[str]], delimiter: str) -> bool:
    """Whether a first line names columns: it has only words, each once, that are not values of the
    columns."""
    if len(first) > 1 and not any(row[-1] for row in (first, *rest) if len(row) == len(first)):
        first, rest = first[:-1], [row[:-1] for row in rest]  # each line ends in a delimiter
    named = [field.strip() for field in first]
    words = [bool(WORD.fullmatch(field)) for field in named]
    if not all(words[1:]) or (named[0] and not words[0]):  # an index of pandas has no name
        return _names_numbers(named, rest, delimiter)
    if len(set(named)) < len(named) and not _any_number(rest):
        return False
    if not rest or _any_number(rest):
        return True
    columns = list(zip(*(row for row in rest if len(row) == len(first)), strict=False))
    return not any(name in column for name, column in zip(named, columns, strict=False))


def _names_numbers(named: Sequence[str], rest: Sequence[Sequence[str]], delimiter: str) -> bool:
    """Whether odd words, as "CTR (%)" and "#clicks", name columns: each is there once, and below
    one are numbers alone. A word for nothing above numbers is a value of theirs.

    Where semicolons part fields, numbers may have decimal commas, under a word that is odd itself,
    as "Preis, netto": neither "unknown", in whatever language, nor a list, as "a,b"."""
    odd = all(ODD_WORD.fullmatch(field) for field in named[bool(named and not named[0]) :])
    if not odd or len(set(named)) < len(named):
        return False
    columns = zip(*(row for row in rest if len(row) == len(named)), strict=False)
    pairs = zip(named, columns, strict=False)
    above = {
        name
        for name, column in pairs
        if all(map(_is_number, column))
        or (delimiter == ";" and _is_oddly_named(name) and all(map(_is_decimal, column)))
    }
    return bool(above) and above.isdisjoint({*NULLS[1:], *MORE_NULLS})


def _any_number(rows: Iterable[Sequence[str]]) -> bool:
    return any(_is_number(field) for row in rows for field in row)


def _is_oddly_named(name: str) -> bool:
    return not WORD.fullmatch(name) and LONG_WORD.search(name) is not None


def _is_decimal(field: str) -> bool:
    return bool(DECIMAL.fullmatch(field))


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return field.strip().lower() not in ("nan", "inf", "infinity")
