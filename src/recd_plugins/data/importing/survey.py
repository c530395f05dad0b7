"""A survey of foreign files: what their columns seem to be, by a sample that is spread over
them."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from recd_plugins.data.conform.dates import text_dates
from recd_plugins.data.conform.values import are_texts
from recd_plugins.data.foreign import TextDates
from recd_plugins.data.importing.formats import (
    ELEMENTS,
    MORE_NULLS,
    ForeignFile,
    field_at,
    fields_of,
    is_pair,
)
from recd_plugins.data.importing.reading import (
    TIME_FORMS,
    Block,
    ColumnTypes,
    blocks,
    is_within,
    num_bytes,
    split_texts,
)
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import input_file

__all__ = ["ColumnSurvey", "Seems", "Survey", "survey"]

FILES = 8
"""Files that are sampled, spread over all of them."""
FIRST_BYTES = 1 << 20
SPOTS = 16
"""Places of a file at which it is sampled, beside its beginning."""
SPOT_BYTES = 256 << 10
PACKED_BYTES = 4 << 20
"""Unpacked bytes that are sampled of a compressed file, at its beginning: others are dear."""
LATE_LINES = 64
"""Lines that are sampled for a key which the sample lacks."""
GROUP_ROWS = 8_192
"""Rows that are sampled of a row group."""

BOOLEANS = frozenset({"true", "false", "True", "False", "TRUE", "FALSE"})
SEPARATORS = ("|", ";", ",", " ")
SCORED = r"\s*[^\s|;,:]+:[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"
"""An id with a weight in text, as 3:0.5."""
EXAMPLES = 3
CHANGED = re.compile(r"Column\(([^)]*)\) changed from")
"""What Arrow says of a key of JSON with values of several types."""

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
    examples: tuple[str, ...] = ()
    two_valued: bool = False
    """Whether 0 and 1 are all of its values."""
    whole: bool = False
    """Whether all of its numbers are whole."""
    mean: float | None = None
    seen: pa.Array | None = None
    """The different values of the sample."""
    ascending: bool = False
    """Whether its values never fall, in the order of the rows."""
    dates: tuple[TextDates, ...] = ()
    """The forms of a date that all of its texts have."""

    @property
    def unique(self) -> bool:
        """Whether next to every value is another one."""
        return self.values >= 100 and self.distinct >= 0.98 * self.values


@dataclass(frozen=True)
class _Keys:
    """What lines of JSON say of their keys."""

    nested: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The fields of objects, and where they lie."""
    mixed: set[str] = field(default_factory=set)
    """The keys that have values of several types."""


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
    doubts: tuple[str, ...] = field(default=())
    """The questions that the sample does not settle."""


def survey(
    files: Sequence[ForeignFile], wanted: Collection[str] = (), *, alone: bool = False
) -> Survey:
    """Look at a bounded sample of the files: first rows, and rows from places all over them.

    Where that shows no value of a `wanted` key of lines of JSON, all lines are searched for some.
    Where they are wanted `alone`, files may differ in the types of all other columns.
    """
    chosen = [files[i] for i in _spread(len(files), FILES)]
    parts: list[pa.Table] = []
    rows = sampled = 0.0
    exact = True
    doubts = []
    keys = _Keys()
    for file in chosen:
        found, total = (_parquet_sample if file.format == "parquet" else _line_sample)(file, keys)
        for name, value in file.partitions.items():
            if name in found.column_names:  # a key of JSON that comes late
                found = found.drop_columns([name])
            found = found.append_column(name, pa.repeat(value, found.num_rows))
        parts.append(found)
        rows += total
        sampled += found.num_rows
        exact = exact and (file.format == "parquet" or found.num_rows == total)
        if file.compression and found.num_rows < total:
            doubts.append(
                f"{file.path.name} is compressed: its first {found.num_rows:,} rows alone were "
                "looked at."
            )
    if len(chosen) < len(files):
        rows *= num_bytes(files) / num_bytes(chosen)
        exact = False
    if files[0].format == "jsonl":
        lacked = {one for one in wanted if not is_within(one, keys.mixed)} - _with_values(parts)
        for file, found in _late(files, lacked, keys):
            chosen.append(file)
            parts.append(found)
    doubts += [f"{name!r} has several types, so it is left out" for name in sorted(keys.mixed)]
    types = _common_types(chosen, parts, keys, doubts, wanted if alone else ())
    inferred = _typed(types, files[0], keys)
    total_rows = max(round(rows), int(sampled))
    columns = tuple(_column(name, column, total_rows) for name, column in inferred.columns.items())
    for name in inferred.columns:
        lacking = [file.path for file in chosen if name not in file.columns]
        if lacking and files[0].format != "jsonl":  # of which any line may lack any key
            doubts.append(
                f"{name!r} is not in {lacking[0]} ({len(lacking)} of {len(chosen)} files that were "
                f"looked at lack it): `recd data import --absent {name}`, or `absent` of the "
                "dataset, takes nulls for it there"
            )
    twice = dict.fromkeys(name for file in files for name in file.renamed)
    doubts += [
        f"several columns are called {name!r}: all but the first got a number" for name in twice
    ]
    return Survey(
        files=tuple(files),
        rows=total_rows,
        sampled=int(sampled),
        exact_rows=exact,
        columns=columns,
        read_as=inferred.read_as,
        doubts=tuple(doubts),
    )


def _spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` things, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _with_values(parts: Sequence[pa.Table]) -> set[str]:
    """The columns of which some part has a value."""
    return {one.name for part in parts for one in part.schema if _is_known(one.type)}


def _is_known(kind: pa.DataType) -> bool:
    """Whether some value shows the type."""
    return not pa.types.is_null(kind.value_type if _is_list(kind) else kind)


def _late(
    files: Sequence[ForeignFile], names: Collection[str], keys: _Keys
) -> Iterator[tuple[ForeignFile, pa.Table]]:
    """Lines of JSON that have values of these columns, from wherever the first lie."""
    waiting = {name: _key(name) for name in names}
    met: set[str] = set()
    for block in blocks(files, ()) if names else ():
        content = block.content.to_pybytes()
        lines = dict[bytes, None]()
        for name, key in waiting.items():
            for one in islice(key.finditer(content), LATE_LINES):
                lines[_line(content, one)] = None
                met.add(name)
        if not lines:
            continue
        rows = _json_sample(replace(block, content=pa.py_buffer(b"\n".join(lines))), keys)
        found = _with_values([rows]) & {*waiting}
        if found:
            yield block.file, rows.select([one for one in rows.column_names if one in found])
        for name in found:
            del waiting[name]
        if not waiting:
            return
    whole = {where[0] for where in keys.nested.values()}  # an object, not a field of it
    unclear = [name for name in waiting if name in met - whole]
    if unclear:
        yield files[0], pa.table({name: pa.nulls(1) for name in unclear})


def _key(name: str) -> re.Pattern[bytes]:
    """A key with a value: the name; or, of `user.city`, one on a line with the object's before."""

    def spelled(key: str) -> bytes:
        each = {json.dumps(key, ensure_ascii=ascii_).encode() for ascii_ in (True, False)}
        return b"(?:" + b"|".join(map(re.escape, sorted(each))) + b")"

    keys = spelled(name)
    if "." in name:
        keys = b"(?:" + keys + b"|" + rb"[^\n]*?".join(map(spelled, name.split("."))) + b")"
    return re.compile(keys + rb"\s*:(?!\s*(?:null|\[\s*\]))")


def _line(content: bytes, found: re.Match[bytes]) -> bytes:
    end = content.find(b"\n", found.end())
    return content[content.rfind(b"\n", 0, found.start()) + 1 : end if end >= 0 else None]


def _parquet_sample(file: ForeignFile, keys: _Keys) -> tuple[pa.Table, float]:
    with input_file(file.path) as source, pq.ParquetFile(source) as opened:
        parts = []
        for group in _spread(opened.num_row_groups, SPOTS):
            batch = next(opened.iter_batches(GROUP_ROWS, row_groups=[group]), None)
            if batch is not None:
                parts.append(pa.table(batch.columns, names=list(file.roots)))
        if not parts:
            empty = opened.schema_arrow.empty_table().columns
            parts.append(pa.table(empty, names=list(file.roots)))
        fields = {name: file.nested.get(name, (name,)) for name in file.names}
        return _of_fields(pa.concat_tables(parts), fields), float(opened.metadata.num_rows)


def _of_fields(rows: pa.Table, fields: Mapping[str, tuple[str, ...]]) -> pa.Table:
    """The fields of structs as columns, each of plain values."""
    return pa.table(
        {name: _undressed(field_at(rows[where[0]], where)) for name, where in fields.items()}
    )


def _undressed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values without a dictionary or an extension type around them."""
    if isinstance(column.type, pa.BaseExtensionType):
        kind = column.type.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def _line_sample(file: ForeignFile, keys: _Keys) -> tuple[pa.Table, float]:
    size = file.size
    parts: list[pa.Table] = []
    seen = 0
    packed_share = 1.0
    with input_file(file.path) as packed:
        if file.compression:
            with pa.CompressedInputStream(packed, file.compression) as stream:
                head = stream.read(PACKED_BYTES)[file.start :]
                packed_share = max(packed.tell(), 1) / size
                ended = len(head) < PACKED_BYTES - file.start
            spots = [head if ended else head[: head.rfind(b"\n") + 1]]
            if ended:
                packed_share = 1.0
        else:
            spots = list(_spots(packed, file.start, size))
    for number, spot in enumerate(spots):
        block = Block(
            file=file, content=pa.py_buffer(spot), first=1 + file.header, after=None, done=0
        )
        try:
            rows = (
                _json_sample(block, keys)
                if file.format == "jsonl"
                else block.rows(file.names, ColumnTypes())
            )
        except DataError:
            if not number:
                raise
            continue  # a spot that begins within quotes
        parts.append(rows)
        seen += len(spot)
    found = _stacked(parts, keys)
    whole = (size - file.start) if not file.compression else seen / packed_share
    total = found.num_rows * whole / max(seen, 1)
    return found, float(found.num_rows) if seen >= whole else total


def _spots(file: pa.NativeFile, start: int, size: int) -> Iterator[bytes]:
    """Whole lines of the beginning, and from places all over the rest."""
    if size - start <= FIRST_BYTES + SPOTS * SPOT_BYTES:
        file.seek(start)
        yield file.read(size - start)
        return
    file.seek(start)
    first = file.read(FIRST_BYTES)
    yield first[: first.rfind(b"\n") + 1]
    begin = start + FIRST_BYTES
    for index in range(SPOTS):
        file.seek(begin + (size - begin - SPOT_BYTES) * index // (SPOTS - 1))
        data = file.read(SPOT_BYTES)
        line, end = data.find(b"\n") + 1, data.rfind(b"\n") + 1
        if line and line < end:
            yield data[line:end]


def _stacked(parts: Sequence[pa.Table], keys: _Keys) -> pa.Table:
    """The parts as one table; a column whose types have nothing in common is left out."""

    def as_one(names: Collection[str]) -> pa.Table:
        each = [part.select([one for one in part.column_names if one in names]) for part in parts]
        return pa.concat_tables(each, promote_options="permissive")

    names = dict.fromkeys(name for part in parts for name in part.column_names)
    try:
        return as_one(names)
    except pa.ArrowException:
        for name in names:
            try:
                as_one([name])
            except pa.ArrowException:
                keys.mixed.add(name)
        return as_one([name for name in names if name not in keys.mixed])


def _json_sample(block: Block, keys: _Keys) -> pa.Table:
    """Lines of JSON, the fields of their objects as columns; a key of several types is left out."""
    content, before = block.content, list[str]()
    while True:
        try:
            rows = pa.json.read_json(
                pa.BufferReader(content),
                pa.json.ReadOptions(block_size=content.size + 1, use_threads=False),
            )
            break
        except pa.ArrowInvalid as error:
            changed = CHANGED.search(str(error))
            if changed is None or changed[1] in ("", *before):
                raise DataError(
                    f"{block.where}: cannot be read as lines of JSON: {error}. Mend the line, or "
                    "take it out."
                ) from None
            before.append(changed[1])
            path = [part for part in changed[1].split("/") if part and part != ELEMENTS]
            keys.mixed.add(".".join(path))
            content = _without_key(block, content, path)
    fields = fields_of(dict(zip(rows.column_names, rows.schema.types, strict=True)))
    keys.nested.update({name: where for name, where in fields.items() if len(where) > 1})
    rows = _of_fields(rows, fields)
    for at, field_ in enumerate(rows.schema):
        if pa.types.is_timestamp(field_.type):  # in other places it may have fractions
            rows = rows.set_column(at, field_.name, rows[at].cast(pa.string()))
    return rows


def _without_key(block: Block, content: pa.Buffer, path: Sequence[str]) -> pa.Buffer:
    """Lines of JSON without the key that lies there, in lists too."""

    def taken_out(value: Any, path: Sequence[str]) -> None:
        if isinstance(value, list):
            for one in value:
                taken_out(one, path)
        elif isinstance(value, dict) and len(path) == 1:
            value.pop(path[0], None)
        elif isinstance(value, dict):
            taken_out(value.get(path[0]), path[1:])

    try:
        lines = content.to_pybytes().split(b"\n")
        rows = [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise DataError(f"{block.where}: a line is no JSON ({error}). Mend it.") from None
    for row in rows:
        taken_out(row, path)
    return pa.py_buffer("\n".join(map(json.dumps, rows)).encode())


def _common_types(
    files: Sequence[ForeignFile],
    parts: Sequence[pa.Table],
    keys: _Keys,
    doubts: list[str],
    wanted: Collection[str],
) -> pa.Table:
    """The samples of all files as one table: nulls where one lacks a column."""
    nested = keys.nested
    inner = {where[:count] for where in nested.values() for count in range(1, len(where))}
    columns: dict[str, pa.ChunkedArray] = {}
    for name in dict.fromkeys(name for part in parts for name in part.column_names):
        if is_within(name, keys.mixed):
            continue
        each = [
            pa.table({name: part[name] if name in part.column_names else pa.nulls(part.num_rows)})
            for part in parts
        ]
        try:
            column = pa.concat_tables(each, promote_options="permissive")[name]
        except pa.ArrowException:
            if wanted and name not in wanted:
                continue  # files may differ in what the schema does not name
            column = _as_texts(name, files, each)
            doubts.append(
                f"{name!r} has several types: an id that is hashed or of a vocabulary may, all "
                "else may not"
            )
        # An object that is null or an empty list in this sample is no column beside its fields.
        if _is_known(column.type) or nested.get(name, (name,)) not in inner:
            columns[name] = column
    return pa.table(columns)


def _as_texts(name: str, files: Sequence[ForeignFile], each: Sequence[pa.Table]) -> pa.ChunkedArray:
    """A column of Parquet whose types have no more in common than that they can be written."""
    kinds = {str(one[name].type): file for one, file in zip(each, files, strict=True)}
    try:
        if files[0].format == "parquet":
            return pa.chunked_array(
                [chunk.cast(pa.string()) for one in each for chunk in one[name].chunks], pa.string()
            )
    except pa.ArrowException:
        pass
    differ = " and ".join(f"{kind} in {file.path}" for kind, file in kinds.items())
    raise DataError(
        f"files disagree on the type of column {name!r}: {differ}. Write them alike, import them "
        "apart, or give a schema that does not name it."
    )


@dataclass(frozen=True)
class _Typed:
    columns: dict[str, pa.ChunkedArray]
    read_as: ColumnTypes


def _typed(sample: pa.Table, file: ForeignFile, keys: _Keys) -> _Typed:
    """The sample's columns in the types that they are read as."""
    columns: dict[str, pa.ChunkedArray] = {}
    types: dict[str, pa.DataType] = {}
    parted: dict[str, str] = {}
    nulls: dict[str, tuple[str, ...]] = {}
    names = dict.fromkeys((*file.names, *sample.column_names))
    for name in (one for one in names if one in sample.column_names):
        column = sample[name]
        own = name not in file.partitions
        if own and file.format != "parquet" and pa.types.is_string(column.type):
            separator = " " if name in file.lists else _separator(column)
            if scored := _scored_separator(column):
                parted[name] = scored
                column = _scored_lists(column, scored)
            elif separator:
                parted[name] = separator
                column = _lists(column, separator)
            elif file.format == "text":
                column, spelled = _numbers_or_times(column)
                if spelled:
                    nulls[name] = tuple(spelled)
            else:  # times that Arrow leaves texts, since they have fractions of seconds or a zone
                column = _times(column) or column
        columns[name] = column
        types[name] = column.type
    read_as = ColumnTypes(
        types=types,
        nulls=nulls,
        parted=parted,
        nested=keys.nested,
        mixed=frozenset(keys.mixed),
    )
    return _Typed(columns, read_as)


def _numbers_or_times(texts: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Sequence[str]]:
    """Texts in the narrowest type that holds all of them, and what else stands for nothing."""
    present = texts.drop_null()
    if not len(present):
        return texts, ()
    spelled = [one for one in MORE_NULLS if pc.any(pc.equal(present, one)).as_py()]
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


def _as_narrow(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    if texts.null_count == len(texts):
        return None
    trimmed = pc.utf8_trim_whitespace(texts)
    # A code as 00123 is no number, and neither is one of more than 18 digits.
    code = pc.any(pc.match_substring_regex(trimmed, r"^-?0\d|^-?\d{19,}$")).as_py()
    if not code:
        for kind in (pa.int64(), pa.float64()):
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


def _separator(texts: pa.ChunkedArray) -> str:
    """The separator of elements, where texts look like lists; nothing where they do not."""
    present = pc.utf8_trim_whitespace(texts.drop_null().slice(0, 20_000))
    if not len(present):
        return ""
    brackets = _all_match(present, r"^\[.*\]$")
    bare = pc.utf8_trim(present, "[]") if brackets else present
    for separator in SEPARATORS:
        escaped = "\\" + separator if separator == "|" else separator
        several = pc.mean(pc.match_substring(bare, separator)).as_py()
        # Words between blanks or commas are prose: only numbers are a list then.
        element = r"[^|;]+" if separator in "|;" else r"\s*-?\d+\s*"
        if brackets:
            element = r"[^,]*"
        pattern = f"^({element}({escaped}{element})*)?$"
        if several >= 0.2 and _all_match(bare, pattern):
            return separator
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
        pattern = f"^({SCORED}({escaped}{SCORED})*)?$"
        if _all_match(bare, pattern):
            marks = (separator, ".") if separator == SEPARATORS[0] else (separator,)
            if any(pc.any(pc.match_substring(bare, mark)).as_py() for mark in marks):
                return separator
    return ""


def _scored_lists(texts: pa.ChunkedArray, separator: str) -> pa.ChunkedArray:
    """Lists of ids with weights, the ids integers where all are; a code as 00123 is none."""
    codes = pc.any(
        pc.match_substring_regex(texts, r"(^|[\s|;,\[])-?(0\d|\d{19,})[^|;, ]*:")
    ).as_py()
    for ids in (pa.string(),) if codes else (pa.int64(), pa.string()):
        kind = pa.struct([("id", ids), ("weight", pa.float64())])
        try:
            return split_texts(texts, separator, pa.list_(kind))
        except pa.ArrowInvalid:
            continue
    raise AssertionError("texts hold any id")


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
    is_list = _is_list(kind)
    values = column
    nulls = column.null_count
    if is_list:
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
    values = _undressed(values)
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    if pa.types.is_timestamp(values.type):  # those of Python have no nanoseconds
        values = values.cast(pa.timestamp("us", values.type.tz), safe=False)
    seems = _seems(values.type)
    if seems == "scored ids" and not is_list:
        seems = "unknown"
    if seems in ("unknown", "scored ids"):
        return ColumnSurvey(
            name=name, type=kind, seems=seems, is_list=is_list, width=width, rows=len(column),
            nulls=nulls, values=len(values), distinct=0, estimate=0, lengths=lengths,
        )  # fmt: skip
    present = values.drop_null()
    if seems == "numbers":
        finite = pc.is_finite(present)
        nulls += 0 if is_list else len(present) - (pc.sum(finite).as_py() or 0)
        present = present.filter(finite)
    counted = pc.value_counts(present.combine_chunks())
    counts = counted.field("counts").to_numpy(zero_copy_only=False)
    different = counted.field("values")
    mean_length = 1.0 if lengths is None else lengths[1]
    low = high = mean = None
    whole = ascending = False
    if len(present) and seems in ("integers", "numbers", "times"):
        bounds = pc.min_max(present).as_py()
        low, high = bounds["min"], bounds["max"]
        numbers = present
        if seems == "times":  # a date is of 32 bits
            numbers = present.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        array = numbers.to_numpy()
        ascending = not is_list and array.size > 1 and bool(np.all(array[1:] >= array[:-1]))
        if seems != "times":
            mean = float(array.mean())
            whole = bool(np.all(np.mod(array, 1) == 0))
    return ColumnSurvey(
        name=name,
        type=kind,
        seems=seems,
        is_list=is_list,
        width=width,
        rows=len(column),
        nulls=nulls,
        values=len(present),
        distinct=len(counts),
        estimate=_estimate(counts, round(rows * mean_length)),
        most=_most(counts, round(rows * mean_length)),
        low=low,
        high=high,
        lengths=lengths,
        examples=tuple(_shown(one.as_py()) for one in different[:EXAMPLES]),
        two_valued=seems in ("integers", "numbers", "booleans")
        and set(pc.unique(different).to_pylist()[:3]) == {0, 1},
        whole=whole,
        mean=mean,
        seen=different,
        ascending=ascending,
        dates=text_dates(different) if seems == "texts" and not is_list else (),
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


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
