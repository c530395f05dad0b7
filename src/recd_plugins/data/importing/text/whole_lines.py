"""Whole lines of text with their numbers, read from a file in blocks, from any place on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from recd_plugins.data.importing.foreign_file import ForeignFile, cut_short
from recd_plugins.data.importing.text.encodings import ENCODE
from recd_plugins.data.importing.text.escaped_quotes import doubled, undoubled
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import input_file

__all__ = [
    "CutLines",
    "Lines",
    "check_quotes_close",
    "check_quotes_end",
    "cut_lines",
    "first_lines",
]

BLOCK_BYTES = 8 << 20
"""The size of a block of text, uncompressed."""
LONGEST_LINE = 64 << 20
NEWLINE, QUOTE = b'\n"'


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Whole lines of a file."""

    file: ForeignFile
    raw: pa.Buffer
    """Their bytes, in the file's encoding; escaped quotes are doubled."""
    first: int
    """The number of the first line, from 1 on."""

    @property
    def where(self) -> str:
        return f"{self.file.path}, from line {self.first:,} on"

    @property
    def text(self) -> pa.Buffer:
        """The lines in UTF-8."""
        encoding = self.file.encoding
        if encoding == "utf-8":
            return self.raw
        try:
            return pa.py_buffer(str(self.raw, encoding).encode())
        except UnicodeDecodeError as error:
            raise self._of_another_encoding(error) from None

    def check_encoding(self) -> None:
        """Raise `DataError` for the first line that has bytes of another encoding."""
        try:
            str(self.raw, self.file.encoding)
        except UnicodeDecodeError as error:
            raise self._of_another_encoding(error) from None

    def _of_another_encoding(self, error: UnicodeDecodeError) -> DataError:
        found = bytes(error.object[error.start : error.start + 8])
        line = self.first + error.object[: error.start].count(b"\n")
        encoding = self.file.encoding.upper()
        return DataError(
            f"{self.file.path}:{line}: holds bytes that are no {encoding} ({found!r}). {ENCODE}"
        )

    def line_of_row(self, row: int) -> int:
        """The number of the line in which a row begins; the first row is 1.

        Arrow does not count empty lines, nor line ends within quotes, and takes a carriage return
        in the middle of a line for the end of a row.
        """
        flat = bytes(self.text)
        text = self.file.format == "text"
        if text and self.file.quotes:
            hidden = bytes.maketrans(b"\n\r", b"\0 ")
            flat = _quoted(self.file).sub(lambda found: found[0].translate(hidden), flat)
        line = self.first
        for one in flat.split(b"\n"):
            row -= sum(bool(part if text else part.strip()) for part in one.split(b"\r"))
            if row <= 0:
                break
            line += 1 + one.count(b"\0")
        return line


class CutLines(NamedTuple):
    """Lines that were cut from a file, and how far the file has been read."""

    lines: Lines
    at: int
    """The number of uncompressed bytes of the file up to the end of the lines."""
    row: int
    """The number of lines of the file up to there."""
    read: int
    """The number of bytes of the file, as stored, that were read so far."""


def cut_lines(file: ForeignFile, at: int, row: int) -> Iterator[CutLines]:
    """The lines of a file from a place that was reached before or, if `at` is 0, from its first row
    on; a line end within quotes does not end a line."""
    first = 1 + (row if at else file.lines_before)
    at = at or file.start
    quotes = file.format == "text" and file.quotes
    rest: bytes | bytearray = b""
    try:
        with input_file(file.path) as packed:
            stream = (
                pa.CompressedInputStream(packed, file.compression) if file.compression else packed
            )
            _skip(stream, at, seeks=file.compression is None)
            # Blocks end at fixed places, so that the lines are the same wherever reading begins.
            ends = file.start + -(-(at - file.start) // BLOCK_BYTES) * BLOCK_BYTES
            while True:
                ends += BLOCK_BYTES
                content, more = _filled(stream, rest, ends - at - len(rest))
                if file.escapes:
                    content = doubled(content, file.delimiter, file.encoding)
                counted = undoubled(content, file.encoding) if file.escapes else content
                cut = _last_line_end(counted, quotes) if more else len(content)
                if quotes and not more and _count(counted, QUOTE, cut) % 2:
                    _check_closed(file, counted, content, first)
                if cut:
                    count = _count(content, NEWLINE, cut) + (content[cut - 1] != NEWLINE)
                    at += cut
                    raw = pa.py_buffer(memoryview(content)[:cut])
                    lines = Lines(file=file, raw=raw, first=first)
                    first += count
                    yield CutLines(lines, at, first - 1, packed.tell())
                rest = content[cut:]
                if not more:
                    return
                if len(rest) > LONGEST_LINE:
                    raise DataError(
                        f"{file.path}:{first}: no line ends within {LONGEST_LINE >> 20} MiB from "
                        "here. Check whether a quote is never closed, and whether this is text."
                    )
    except (pa.ArrowException, OSError) as error:
        what = f"cannot be read to its end, after line {first - 1:,}"
        raise cut_short(file.path, file.compression, what, error) from error


def first_lines(file: ForeignFile, content: bytes, *, ended: bool) -> Lines | None:
    """The whole lines at the start of some bytes that begin with a row of the file: all bytes if
    the file has `ended`; None if there is no text."""
    signs: bytes | bytearray = content
    if file.escapes:
        content = bytes(doubled(content, file.delimiter, file.encoding))
        signs = undoubled(content, file.encoding)
    quotes = file.format == "text" and file.quotes
    cut = len(content) if ended else _last_line_end(bytearray(signs), quotes)
    if not content[:cut].strip():
        return None
    return Lines(file=file, raw=pa.py_buffer(content[:cut]), first=1 + file.lines_before)


def check_quotes_end(lines: Lines, text: pa.Buffer, rows: int) -> None:
    """Raise `DataError` if a quoted field runs over several lines to a quote that does not end a
    field: then it swallowed the lines up to where another quoted field begins.

    This is possible only if `text`, the lines in UTF-8, has fewer rows than lines.
    """
    file = lines.file
    if not file.quotes or rows >= _count(text, NEWLINE, text.size):
        return
    content = text.to_pybytes()
    ends = (b"", b"\r", b"\n", file.delimiter.encode())
    # Each field is matched as a whole: the quote that ends it may be the first in its line.
    for found in _quoted(file).finditer(content):
        if b"\n" in found[0] and content[found.end() : found.end() + 1] not in ends:
            first = lines.first + content.count(b"\n", 0, found.start())
            last = lines.first + content.count(b"\n", 0, found.end())
            raise DataError(
                f"{file.path}:{first}: opens a quote that is closed in the middle of a field of "
                "line "
                f'{last:,}: these lines would be one value. Close it, or double it ("") if it is a '
                "character of its field."
            )


def check_quotes_close(lines: Lines) -> None:
    """Raise `DataError` if a quoted field goes on to the end of the lines, which end outside of
    quotes unless the file ends there."""
    file, content = lines.file, bytearray(lines.raw.to_pybytes())
    if file.quotes:
        signs = undoubled(content, file.encoding) if file.escapes else content
        _check_closed(file, signs, content, lines.first)


def _check_closed(file: ForeignFile, signs: bytearray, content: bytearray, first: int) -> None:
    """Raise `DataError` if a quoted field, found in `signs`, goes on to the end of the file: all
    lines after its start would belong to it."""
    for found in _quoted(file, ends=rb'(?P<end>"|\Z)').finditer(signs):
        if not found["end"]:
            line = first + _count(content, NEWLINE, found.start())
            odd = bytes(content[found.start() : found.start() + 40]).split(b"\n")[0].strip()
            raise DataError(
                f"{file.path}:{line}: opens a quote that is never closed: "
                f'{odd.decode(file.encoding, "replace")}. Close it, or double it ("") if it is a '
                "character of its field."
            )


def _quoted(file: ForeignFile, ends: bytes = b'"') -> re.Pattern[bytes]:
    """A pattern of a quoted field that ends with `ends`."""
    begins = re.escape(file.delimiter.encode())
    field_ = rb'(?:(?<=%s)|^)"[^"]*+(?:""[^"]*+)*+%s' % (begins, ends)
    return re.compile(field_, re.MULTILINE)


def _filled(stream: pa.NativeFile, rest: bytes | bytearray, size: int) -> tuple[bytearray, bool]:
    """The bytes that were left and up to `size` more, in one array; and whether any were read."""
    content = bytearray(len(rest) + size)
    content[: len(rest)] = rest
    read = stream.readinto(memoryview(content)[len(rest) :])
    if read < size:
        del content[len(rest) + read :]
    return content, read > 0


def _count(content: bytearray | pa.Buffer, byte: int, stop: int, start: int = 0) -> int:
    """How often a byte occurs; counted as fast as memory can be read, however often it occurs."""
    return int(np.count_nonzero(np.frombuffer(content, np.uint8)[start:stop] == byte))


def _skip(stream: pa.NativeFile, count: int, *, seeks: bool) -> None:
    if seeks:
        stream.seek(count)
        return
    while count > 0 and (data := stream.read(min(count, BLOCK_BYTES))):
        count -= len(data)


def _last_line_end(content: bytearray, quotes: bool) -> int:
    """The place after the last line that ends outside of quotes; 0 if there is none."""
    cut = content.rfind(b"\n") + 1
    if not quotes or not cut:
        return cut
    inside = _count(content, QUOTE, cut) % 2
    while inside and cut:
        before = content.rfind(b"\n", 0, cut - 1) + 1
        inside = (inside + _count(content, QUOTE, cut, before)) % 2
        cut = before
    return cut
