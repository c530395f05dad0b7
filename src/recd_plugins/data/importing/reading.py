"""Rows of foreign files, block by block: in bounded memory, and from any block on."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from recd_plugins.data.conform.values import without_views
from recd_plugins.data.importing.escaped_quotes import doubled, escaped_as
from recd_plugins.data.importing.formats import (
    BOM,
    ELEMENTS,
    MORE_NULLS,
    NULLS,
    ForeignFile,
    cut_short,
    field_at,
)
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.data.importing.text_lists import HEXADECIMAL, split_texts
from recd_plugins.errors import DataError, nearest
from recd_plugins.storage.uri import input_file

__all__ = [
    "GROUPED",
    "TIME_FORMS",
    "Block",
    "ColumnTypes",
    "Misfit",
    "Position",
    "as_pairs",
    "blocks",
    "damaged",
    "is_within",
    "json_schema",
    "key_problem",
    "line_of_row",
    "mapped",
    "num_bytes",
    "opened_parquet",
    "read_json",
    "wider",
    "without_commas",
]

R = TypeVar("R")

BLOCK_BYTES = 8 << 20
"""Text of one block, unpacked."""
LONGEST_LINE = 64 << 20
BATCH_ROWS = 65_536
"""Rows of one block of Parquet."""

NEWLINE, QUOTE = b'\n"'
CONTROLS = [bytes([one]) for one in range(31, 0, -1) if one not in b"\t\n\r"]
"""Characters that text hardly has."""

TIME_FORMS = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d")
"""The forms that times of text may have, beside those of ISO 8601."""

GROUPED = r"^-?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d+)?$"
"""A number whose commas may part thousands, or one without."""

INVALID = re.compile(r"invalid value '(.*)'")

SEVERAL = re.compile(r"'-?\d+([|;])\d+(?:\1\d+)*'")
"""A list of whole numbers, where one is meant."""

MEND = "Mend this value, or take the line out."

ENCODE = "Say its encoding, as `--encoding latin-1`, or mend the line."

ARROWS_ROW = re.compile(r"(?:In CSV column #(\d+): )?(?:CSV parse error: )?Row #(\d+): (.*)", re.S)


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position that reading the files has reached."""

    file: int = 0
    """The file's number."""
    at: int = 0
    """The bytes of it that were read, unpacked; of Parquet, row groups."""
    row: int = 0
    """And so many lines; of Parquet rows."""


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
            },
            decimal_commas=read_so(self.decimal_commas),
            thousands=read_so(self.thousands),
        )


class Misfit(DataError):
    """A value that is not of its column's type, which a survey had found in a part of the rows."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


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
    path = "".join(f".{part}" if part.isidentifier() else f'["{part}"]' for part in name.split("."))
    path = path if path.startswith(".") else f".{path}"
    pairs = "(. // {}) | to_entries | map({id: .key, weight: .value})"
    return f"Make ids with weights of it, which are a feature: jq -c '{path} |= ({pairs})' FILE"


def wider(
    read_as: ColumnTypes, column: str, hashed: Collection[str], file: ForeignFile
) -> pa.DataType | None:
    """The type to read a column of text as some of whose values are not of its type; none if there
    is none: ids and sessions that are `hashed` may be texts, and other whole numbers fractions. Of
    lines of JSON ids may be beyond int64, or whole floats."""
    kind = read_as.types.get(column)
    if kind is None or file.format == "parquet":
        return None
    inner = kind.value_type if pa.types.is_list(kind) else kind
    others = {pa.int64(): pa.float64()}
    if column in hashed and file.format == "jsonl":
        others = {pa.int64(): pa.uint64(), pa.uint64(): pa.float64()}
    elif column in hashed and kind is inner:
        return None if kind == pa.string() else pa.string()
    elif column in hashed:
        others = {pa.int64(): pa.string()}
    wide = others.get(inner)
    return None if wide is None else _listed(wide, kind)


def _listed(inner: pa.DataType, kind: pa.DataType) -> pa.DataType:
    return pa.list_(inner) if pa.types.is_list(kind) else inner


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some rows, not parsed yet: `rows` may be called by any thread."""

    file: ForeignFile
    content: pa.Buffer | pa.Table
    first: int
    """The number of the first line, or of Parquet's first row, from 1 on."""
    after: Position | None
    """The start of the next block; none within a row group, in which no reading begins."""
    done: int
    """Bytes of all files, packed, that have been read by then."""

    @property
    def where(self) -> str:
        what = "row" if self.file.format == "parquet" else "line"
        return f"{self.file.path}, from {what} {self.first:,} on"

    @property
    def text(self) -> pa.Buffer:
        """Its lines in UTF-8."""
        encoding = self.file.encoding
        if encoding == "utf-8":
            return self.content
        try:
            return pa.py_buffer(str(self.content, encoding).encode())
        except UnicodeDecodeError as error:
            found = bytes(error.object[error.start : error.start + 8])
            line = self.first + error.object[: error.start].count(b"\n")
            raise DataError(
                f"{self.file.path}:{line}: holds bytes that are no {encoding.upper()} ({found!r}). "
                f"{ENCODE}"
            ) from None

    def rows(self, columns: Sequence[str], read_as: ColumnTypes) -> pa.Table:
        """The named columns, in this order: those of its folders too, and nulls for those that it
        lacks."""
        own = own_columns(self.file, columns)
        if isinstance(self.content, pa.Table):
            rows = self.content
        elif self.file.format == "jsonl":
            rows = _json_rows(self, own, read_as)
        else:
            rows = _text_rows(self, own, read_as)
        for name in columns:
            if name not in rows.column_names:
                value = self.file.partitions.get(name)
                if value is None:
                    value = pa.scalar(None, read_as.types.get(name, pa.null()))
                rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return rows.select(list(columns))


def own_columns(file: ForeignFile, columns: Sequence[str]) -> list[str]:
    """The columns that a file itself has of these; one at least, for its rows to be counted by."""
    keys_may_come = file.format == "jsonl"
    return [
        name for name in columns
        if name in file.names or (keys_may_come and name not in file.partitions)
    ] or [file.names[0]]  # fmt: skip


def num_bytes(files: Sequence[ForeignFile]) -> int:
    """The size of the files as they lie there."""
    return sum(file.size for file in files)


def blocks(
    files: Sequence[ForeignFile],
    columns: Sequence[str],
    start: Position | None = None,
    absent: Collection[str] = (),
) -> Iterator[Block]:
    """The files' blocks, one after another; `columns` are those that Parquet reads, of which a file
    may lack those that are `absent`."""
    start = start or Position()
    before = num_bytes(files[: start.file])
    for index in range(start.file, len(files)):
        file = files[index]
        position = start if index == start.file else Position(file=index)
        _check_there(file, columns, absent)
        read = _parquet_blocks if file.format == "parquet" else _line_blocks
        yield from read(file, position, before, columns)
        before += file.size


def mapped(
    make: Callable[[Block], R],
    files: Sequence[ForeignFile],
    columns: Sequence[str],
    *,
    start: Position | None = None,
    workers: int | None = None,
    progress: Callable[[str, int, int | None], None],
    what: str,
    absent: Collection[str] = (),
) -> Iterator[tuple[Block, R]]:
    """Each block with what is made of it, in order: made on all cores, some blocks ahead."""
    total, workers = num_bytes(files), workers or max(1, os.cpu_count() or 1)
    progress(what, 0, total)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        waiting: deque[tuple[Block, Future[R]]] = deque()
        stack.callback(lambda: [future.cancel() for _, future in waiting])
        for block in blocks(files, columns, start, absent):
            waiting.append((block, pool.submit(make, block)))
            if len(waiting) > workers:
                first, future = waiting.popleft()
                yield first, future.result()
                progress(what, first.done, total)
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    progress(what, total, total)


def _check_there(file: ForeignFile, columns: Sequence[str], absent: Collection[str]) -> None:
    for name in columns:
        # A key of JSON may come later.
        if name not in (*file.columns, *absent) and file.format != "jsonl":
            raise DataError(
                f"{file.path}: lacks column {name!r}, which the schema names; "
                f"{nearest(name, file.columns)} If some files lack it, `--absent {name}` says so: "
                "`nulls` of the schema holds there."
            )


def _parquet_blocks(
    file: ForeignFile, start: Position, before: int, columns: Sequence[str]
) -> Iterator[Block]:
    columns = own_columns(file, columns)
    wheres = [file.nested.get(name, (name,)) for name in columns]
    indices = [file.roots.index(where[0]) for where in wheres]
    with input_file(file.path) as source, opened_parquet(source) as opened:
        groups, row = opened.num_row_groups, start.row
        paths = opened.schema_arrow.names
        # Of columns that share a name Arrow reads all, or none: each is found by its place.
        named = [paths[index] for index in indices]
        places = [
            sum(1 for other in range(index) if paths[other] == paths[index]) for index in indices
        ]
        for group in range(start.at, groups):
            try:
                left = opened.metadata.row_group(group).num_rows
                batches = opened.iter_batches(
                    BATCH_ROWS, row_groups=[group], columns=list(dict.fromkeys(named))
                )
                for batch in batches:
                    found = [
                        field_at(batch.column(_all_named(batch.schema.names, name)[place]), where)
                        for name, place, where in zip(named, places, wheres, strict=True)
                    ]
                    left -= batch.num_rows
                    yield Block(
                        file=file,
                        content=without_views(pa.Table.from_arrays(found, names=list(columns))),
                        first=row + 1,
                        after=None
                        if left
                        else Position(file=start.file, at=group + 1, row=row + batch.num_rows),
                        done=before + file.size * (group + (not left)) // groups,
                    )
                    row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise damaged(file, group, error) from error


def opened_parquet(source: pa.NativeFile) -> pq.ParquetFile:
    """A file of Parquet, whose pages' checksums are verified where they have some."""
    return pq.ParquetFile(source, page_checksum_verification=True)


def damaged(file: ForeignFile, group: int, error: Exception) -> DataError:
    """The error for a row group that cannot be read."""
    return DataError(
        f"{file.path}, row group {group}: cannot be read ({error}). It was cut short or damaged: "
        "write it again, or take it out."
    )


def _all_named(names: Sequence[str], name: str) -> list[int]:
    return [index for index, other in enumerate(names) if other == name]


def _line_blocks(
    file: ForeignFile, start: Position, before: int, columns: Sequence[str]
) -> Iterator[Block]:
    """Blocks of whole lines; what lies within quotes ends none."""
    at = start.at or file.start
    first = 1 + (start.row if start.at else file.lines_before)
    quotes = file.format == "text" and file.quotes
    rest: bytes | bytearray = b""
    try:
        with input_file(file.path) as packed:
            stream = (
                pa.CompressedInputStream(packed, file.compression) if file.compression else packed
            )
            _skip(stream, at, seeks=file.compression is None)
            # The same blocks wherever reading begins: each ends behind so many whole ones.
            ends = file.start + -(-(at - file.start) // BLOCK_BYTES) * BLOCK_BYTES
            while True:
                ends += BLOCK_BYTES
                content, more = _filled(stream, rest, ends - at - len(rest))
                if file.escapes:
                    content = doubled(content, file.delimiter)
                # What is not doubled is a part of a field, as in 5\" disk, and begins no quotes.
                counted = bytearray(escaped_as(b"  ", content)) if file.escapes else content
                cut = _last_line_end(counted, quotes) if more else len(content)
                if quotes and not more and _count(counted, QUOTE, cut) % 2:
                    _check_closed(file, counted, first)
                if cut:
                    lines = _count(content, NEWLINE, cut) + (content[cut - 1] != NEWLINE)
                    at += cut
                    yield Block(
                        file=file,
                        content=pa.py_buffer(memoryview(content)[:cut]),
                        first=first,
                        after=Position(file=start.file, at=at, row=first - 1 + lines),
                        done=before + packed.tell(),
                    )
                    first += lines
                rest = content[cut:]
                if not more:
                    return
                if len(rest) > LONGEST_LINE:
                    raise DataError(
                        f"{file.path}:{first}: no line ends within {LONGEST_LINE >> 20} MiB from "
                        "here. A quote that is never closed, or no text?"
                    )
    except (pa.ArrowException, OSError) as error:
        what = f"cannot be read to its end, after line {first - 1:,}"
        raise cut_short(file.path, file.compression, what, error) from error


def _check_closed(file: ForeignFile, content: bytearray, first: int) -> None:
    """`DataError` if a field in quotes goes on to the end: all lines behind it would be its."""
    for found in _quoted(file, ends=rb'(?P<end>"|\Z)').finditer(content):
        if not found["end"]:
            line = first + _count(content, NEWLINE, found.start())
            odd = bytes(content[found.start() : found.start() + 40]).split(b"\n")[0].strip()
            raise DataError(
                f"{file.path}:{line}: opens a quote that is never closed: "
                f'{odd.decode(file.encoding, "replace")}. Close it, or double it ("") if it is a '
                "character of its field."
            )


def _check_quotes_end(block: Block, content: bytes) -> None:
    """`DataError` if a field in quotes goes on over lines to a quote that ends no field: it took
    them up to where another one begins."""
    ends = (b"", b"\r", b"\n", block.file.delimiter.encode())
    # Each field is passed as a whole: the quote that ends one may be the first sign of its line.
    for found in _quoted(block.file).finditer(content):
        if b"\n" in found[0] and content[found.end() : found.end() + 1] not in ends:
            first = block.first + content.count(b"\n", 0, found.start())
            last = block.first + content.count(b"\n", 0, found.end())
            raise DataError(
                f"{block.file.path}:{first}: opens a quote that is closed amid a field of line "
                f'{last:,}: these lines would be one value. Close it, or double it ("") if it is a '
                "character of its field."
            )


def _filled(stream: pa.NativeFile, rest: bytes | bytearray, size: int) -> tuple[bytearray, bool]:
    """The bytes that were left and `size` more, in one place; and whether there were any more."""
    content = bytearray(len(rest) + size)
    content[: len(rest)] = rest
    read = stream.readinto(memoryview(content)[len(rest) :])
    if read < size:
        del content[len(rest) + read :]
    return content, read > 0


def _count(content: bytearray | pa.Buffer, byte: int, stop: int, start: int = 0) -> int:
    """The number of times that a byte occurs: as fast as memory is read, however often."""
    return int(np.count_nonzero(np.frombuffer(content, np.uint8)[start:stop] == byte))


def _skip(stream: pa.NativeFile, count: int, *, seeks: bool) -> None:
    if seeks:
        stream.seek(count)
        return
    while count > 0 and (data := stream.read(min(count, BLOCK_BYTES))):
        count -= len(data)


def _last_line_end(content: bytearray, quotes: bool) -> int:
    """Behind the last line that ends outside of quotes; 0 where there is none."""
    cut = content.rfind(b"\n") + 1
    if not quotes or not cut:
        return cut
    inside = _count(content, QUOTE, cut) % 2
    while inside and cut:
        before = content.rfind(b"\n", 0, cut - 1) + 1
        inside = (inside + _count(content, QUOTE, cut, before)) % 2
        cut = before
    return cut


def _text_rows(block: Block, columns: Sequence[str], read_as: ColumnTypes) -> pa.Table:
    content, delimiter = _parted_by_one(block)
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
                column_names=list(block.file.names), block_size=content.size + 1, use_threads=False
            ),
            pa.csv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if block.file.quotes else False,
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
        raise _located(block, str(error).replace(delimiter, block.file.delimiter)) from None
    integers = {name: pa.string() for name in columns if pa.types.is_integer(read[name])}
    if integers and _has_hexadecimals(content):
        for name, texts in zip(integers, parsed(integers).columns, strict=True):
            _check_decimal(block, name, texts)
    if block.file.quotes and table.num_rows < _count(content, NEWLINE, content.size):
        _check_quotes_end(block, content.to_pybytes())
    for name in columns if more else ():
        if pa.types.is_string(read[name]):
            nothing = pa.array([*NULLS, *read_as.nulls.get(name, ())])
            texts = pc.if_else(pc.is_in(table[name], value_set=nothing), None, table[name])
            table = table.set_column(columns.index(name), name, texts)
    for name in commas.intersection(columns):
        if not pa.types.is_string(types[name]):
            try:
                numbers = _numbers(table[name], name in read_as.decimal_commas).cast(types[name])
            except pa.ArrowInvalid as error:
                raise Misfit(f"{block.where}: column {name!r}: {error}. {MEND}", name) from None
            table = table.set_column(columns.index(name), name, numbers)
    return _with_lists(table, block, columns, read_as)


def _has_hexadecimals(content: pa.Buffer) -> bool:
    """Whether something is as 0x1F: text of numbers has no x at all, which is seen fast."""
    text = content.to_pybytes()
    return any(sign in text and b"0" + sign in text for sign in (b"x", b"X"))


def _check_decimal(block: Block, name: str, texts: pa.ChunkedArray) -> None:
    """`Misfit` where a whole number is as 0x1F, which Arrow takes for 31, and others for a text."""
    odd = pc.index(pc.match_substring_regex(texts, HEXADECIMAL), True).as_py()
    if odd >= 0:
        where = f"{block.file.path}:{block.first + line_of_row(block, odd + 1)}"
        reason = f"{texts[odd].as_py()[:40]!r} is no decimal number"
        raise Misfit(f"{where}: column {name!r}: {reason}. {MEND}", name)


def _parted_by_one(block: Block) -> tuple[pa.Buffer, str]:
    """The lines, and the character that parts their fields: Arrow takes one, so another that no
    field has stands for several."""
    text, delimiter = block.text, block.file.delimiter
    if text.slice(0, min(len(BOM), text.size)).to_pybytes() == BOM:
        # That of the file is cut off: this is a field's, of which Arrow would take one away.
        text = pa.py_buffer(BOM + text.to_pybytes())
    if len(delimiter) == 1:
        return text, delimiter
    content = text.to_pybytes()
    free = next((one for one in CONTROLS if one not in content), None)
    if free is None:
        raise DataError(
            f"{block.where}: has all control characters, so none can stand for {delimiter!r}. Is "
            "it text?"
        )
    return pa.py_buffer(content.replace(delimiter.encode(), free)), free.decode()


def _numbers(texts: pa.ChunkedArray, decimals: bool) -> pa.ChunkedArray:
    """Numbers as Arrow spells them; `ArrowInvalid` where their commas are something else."""
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


def _with_lists(
    table: pa.Table, block: Block, columns: Sequence[str], read_as: ColumnTypes
) -> pa.Table:
    """The table, the texts of columns that are lists split into these."""
    for name, separator in read_as.parted.items():
        if name in columns:
            kind = read_as.types.get(name, pa.string())
            try:
                lists = split_texts(table[name], separator, kind)
            except pa.ArrowInvalid as error:
                raise Misfit(f"{block.where}: column {name!r}: {error}", name) from None
            table = table.set_column(columns.index(name), name, lists)
    return table


def _located(block: Block, message: str) -> DataError:
    """Arrow's message with the file, the line and the column in front."""
    found = ARROWS_ROW.search(message)
    if found is None:
        return DataError(f"{block.where}: cannot be read: {message}")
    column, row, reason = found.groups()
    where = f"{block.file.path}:{block.first + line_of_row(block, int(row))}"
    if column is None:
        return DataError(
            f"{where}: {reason[:200]}. Mend this line, or take it out; `--delimiter` says what "
            f"parts the fields, if {str(block.file)!r} is wrong."
        )
    name = block.file.names[int(column)]
    if several := SEVERAL.search(reason):
        return DataError(
            f"{where}: column {name!r} has a list, {several[0]}, where others have one value. Say "
            f'`text: {{lists: {{{name}: "{several[1]}"}}}}` in the schema.'
        )
    cure = ENCODE if "UTF8" in reason else MEND
    return Misfit(f"{where}: column {name!r}: {reason[:200]}. {cure}", name)


def line_of_row(block: Block, row: int) -> int:
    """The number of the line, from the block's first one on, in which a row begins, of which the
    first is 1: Arrow counts neither empty lines nor those that end in quotes."""
    flat = bytes(block.text)
    text = block.file.format == "text"
    if text and block.file.quotes:
        flat = _quoted(block.file).sub(lambda found: found[0].replace(b"\n", b"\0"), flat)
    line = 0
    for one in flat.split(b"\n"):
        row -= bool(one.rstrip(b"\r") if text else one.strip())
        if not row:
            break
        line += 1 + one.count(b"\0")
    return line


def _quoted(file: ForeignFile, ends: bytes = b'"') -> re.Pattern[bytes]:
    """A field in quotes, that ends so."""
    begins = re.escape(file.delimiter.encode())
    field_ = rb'(?:(?<=%s)|^)"[^"]*+(?:""[^"]*+)*+%s' % (begins, ends)
    return re.compile(field_, re.MULTILINE)


def _json_rows(block: Block, columns: Sequence[str], read_as: ColumnTypes) -> pa.Table:
    wheres = {name: read_as.nested.get(name, (name,)) for name in columns}
    types = {name: read_as.types.get(name, pa.string()) for name in columns}
    # Arrow reads as times what has neither fractions of seconds nor a zone.
    times = {name: kind for name, kind in types.items() if pa.types.is_timestamp(kind)}
    texts = dict.fromkeys((*read_as.parted, *times), pa.string())
    content = block.text
    types_read = {**types, **texts}
    try:
        found = read_json(content, json_schema(types_read, wheres))
    except pa.ArrowInvalid as error:
        message = str(error)
        at = re.search(r"in row (\d+)", message)
        where = block.where
        if at:
            where = f"{block.file.path}:{block.first + line_of_row(block, int(at[1]) + 1)}"
        path = re.search(r"Column\(/?([^)]+)\)", message)
        reason = f"{where}: {message}. Mend this line, or take it out."
        if path is None:
            suspects = () if message.startswith("JSON parse error") else wheres.items()
            for name, one in suspects:
                try:
                    read_json(content, json_schema(types_read, {name: one}))
                except pa.ArrowInvalid:
                    raise Misfit(
                        f"{block.where}: column {name!r}: {message}. {MEND}", name
                    ) from None
            raise DataError(reason) from None
        parts = tuple(part for part in path[1].split("/") if part != "[]")
        bare = {
            name: tuple(part for part in one if part != ELEMENTS) for name, one in wheres.items()
        }
        named = next((name for name, one in bare.items() if one == parts), parts[0])
        raise Misfit(reason, named) from None
    made = {name: field_at(found[where[0]], where) for name, where in wheres.items()}
    for name, kind in times.items():
        try:
            made[name] = _moments(made[name], kind)
        except pa.ArrowInvalid as error:
            raise Misfit(f"{block.where}: column {name!r}: {error}. {MEND}", name) from None
    return _with_lists(pa.table(made), block, columns, read_as)


def read_json(content: pa.Buffer, schema: pa.Schema | None = None) -> pa.Table:
    """Objects in lines: the keys of a schema alone, or all, of types that their values show."""
    found = _as_arrow_reads(content, schema)
    try:
        found.validate()
    except pa.ArrowInvalid:
        # Where the first list of a key begins with nulls, Arrow 26 forgets these as it finds out
        # the type. It does not where it is told the type, unless that is of nulls alone.
        typed = [pa.field(one.name, _with_values(one.type)) for one in found.schema]
        again = _as_arrow_reads(content, pa.schema(typed))
        for at, one in enumerate(found.schema):
            if one.type == pa.list_(pa.null()):
                again = again.set_column(at, one.name, _of_nulls(again[at].combine_chunks()))
        return again
    return found


def _as_arrow_reads(content: pa.Buffer, schema: pa.Schema | None) -> pa.Table:
    others = "infer" if schema is None else "ignore"
    return pa.json.read_json(
        pa.BufferReader(content),
        pa.json.ReadOptions(block_size=content.size + 1, use_threads=False),
        pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
    )


def _of_nulls(lists: pa.ListArray) -> pa.ListArray:
    """Lists as long, of nulls without a type."""
    nulls = pa.nulls(len(lists.flatten()))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = pa.array(np.concatenate([[0], lengths.cumsum()]), pa.int32())
    return pa.ListArray.from_arrays(ends, nulls, mask=lists.is_null())


def _with_values(kind: pa.DataType) -> pa.DataType:
    """The type, but texts where lists hold nulls alone."""
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_with_values(one.type)) for one in kind])
    if not pa.types.is_list(kind):
        return kind
    inner = kind.value_type
    return pa.list_(pa.string() if pa.types.is_null(inner) else _with_values(inner))


def _moments(texts: pa.ChunkedArray, kind: pa.TimestampType) -> pa.ChunkedArray:
    """Texts of ISO 8601, with a zone or in UTC, as times."""
    try:
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)
    except pa.ArrowInvalid:
        if pc.any(pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$")).as_py():
            return texts.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
        raise


def json_schema(
    types: Mapping[str, pa.DataType], wheres: Mapping[str, tuple[str, ...]]
) -> pa.Schema:
    """The schema of objects that have columns of these types, by where each of them lies."""
    kinds = {where: _element(types[name], where.count(ELEMENTS)) for name, where in wheres.items()}
    return pa.schema(_fields(kinds))


def _element(kind: pa.DataType, depth: int) -> pa.DataType:
    """The type of the elements of lists within lists, so many deep."""
    return _element(kind.value_type, depth - 1) if depth and pa.types.is_list(kind) else kind


def _fields(kinds: Mapping[tuple[str, ...], pa.DataType]) -> list[pa.Field]:
    """The fields of objects, by where they lie."""
    made: dict[str, pa.DataType] = {}
    for root in dict.fromkeys(where[0] for where in kinds):
        below = {where[1:]: kind for where, kind in kinds.items() if where[0] == root}
        made[root] = _whole(below)
    return [pa.field(name, kind) for name, kind in made.items()]


def _whole(below: Mapping[tuple[str, ...], pa.DataType]) -> pa.DataType:
    """The type of what has these fields below it."""
    if () in below:
        return below[()]
    if all(where[0] == ELEMENTS for where in below):
        return pa.list_(_whole({where[1:]: kind for where, kind in below.items()}))
    return pa.struct(_fields(below))
