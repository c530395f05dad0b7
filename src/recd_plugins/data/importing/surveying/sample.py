"""A bounded sample of foreign files: their first rows, and rows from places all over them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.data.conform.values import is_list, without_views
from recd_plugins.data.importing.column_types import ColumnTypes, as_pairs, is_within
from recd_plugins.data.importing.foreign_file import ForeignFile, cut_short, num_bytes
from recd_plugins.data.importing.reading import blocks, damaged_group, opened_parquet
from recd_plugins.data.importing.struct_fields import of_fields
from recd_plugins.data.importing.surveying.few_types import is_number, of_few_types
from recd_plugins.data.importing.surveying.json_sample import JsonKeys, json_sample
from recd_plugins.data.importing.text.text_rows import text_rows
from recd_plugins.data.importing.text.whole_lines import Lines, cut_lines, first_lines
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import input_file

__all__ = ["Sample", "sample"]

FILES = 8
"""Files that are sampled, spread over all of them; `SMALL_FILES` where they are small."""
SMALL_FILES = 64
SMALL = 64 << 10
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
SPOT_ROWS, SPOT_GROUPS = 256, 64
"""Rows that are sampled at a place at least, and row groups at most."""
FEW_GROUPS, GROUP_BYTES = 4, 128 << 20
"""A file with fewer row groups is sampled at as many places, except within groups of more unpacked
bytes, of which the first rows are sampled: to sample others, all before them are decoded."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The columns of some rows of foreign files."""

    columns: Mapping[str, pa.ChunkedArray]
    """Each column's rows. A key that comes late has more of them: the lines that were searched for
    it say nothing of other columns."""
    files: Sequence[ForeignFile]
    """The files that were looked at."""
    rows: int
    """Rows of all files, about."""
    sampled: int
    """Rows that were looked at."""
    exact_rows: bool
    keys: JsonKeys
    doubts: Sequence[str]
    """The questions that the sample does not settle."""
    several: Mapping[str, Sequence[pa.DataType]]
    """The types in Parquet of columns that files write in types with nothing in common."""


class _SampledRows(NamedTuple):
    """Rows of a file."""

    file: ForeignFile
    rows: pa.Table
    late: bool = False
    """Whether they are lines that have a key which came late, of which it has those keys alone."""

    def __contains__(self, name: object) -> bool:
        # Tables look names up one by one; `column_names` would be a list of all.
        return bool(self.rows.schema.get_all_field_indices(name))

    def column(self, name: str) -> pa.Table:
        return pa.table({name: self.rows[name] if name in self else pa.nulls(self.rows.num_rows)})


def sample(files: Sequence[ForeignFile], wanted: Collection[str], *, alone: bool) -> Sample:
    """Look at some rows of some files.

    Where that shows no value of a `wanted` key of lines of JSON, all lines are searched for some.
    Where they are wanted `alone`, files may differ in the types of all other columns.
    """
    small = num_bytes(files) < SMALL * len(files)
    chosen = [files[i] for i in _spread(len(files), SMALL_FILES if small else FILES)]
    parts: list[_SampledRows] = []
    rows = sampled = 0.0
    exact = True
    doubts = []
    keys = JsonKeys()
    for file in chosen:
        is_parquet = file.format == "parquet"
        found, total = _parquet_sample(file) if is_parquet else _line_sample(file, keys)
        for name, value in file.partitions.items():
            if name in found.column_names:  # a key of JSON that comes late
                found = found.drop_columns([name])
            found = found.append_column(name, pa.repeat(value, found.num_rows))
        parts.append(_SampledRows(file, found))
        rows += total
        sampled += found.num_rows
        exact = exact and (is_parquet or found.num_rows == total)
        if file.compression and found.num_rows < total:
            doubts.append(
                f"{file.path.name} is compressed: its first {found.num_rows:,} rows alone were "
                "looked at."
            )
    if len(chosen) < len(files):
        rows *= num_bytes(files) / num_bytes(chosen)
        exact = False
    if files[0].format == "jsonl":
        lacked = {one for one in wanted if not is_within(one, keys.mixed)}
        parts += _late(files, lacked - _with_values(part.rows for part in parts), keys)
    doubts += [
        f"{name!r} is an object whose keys are ids, {what}. {as_pairs(name)}"
        for name, what in sorted(keys.mappings.items())
        if not any(is_within(one, [name]) for one in wanted)
    ]
    doubts += [f"{name!r} has several types, so it is left out" for name in sorted(keys.mixed)]
    several: dict[str, Sequence[pa.DataType]] = {}
    return Sample(
        columns=_common_types(parts, keys, doubts, wanted if alone else (), several),
        files=chosen,
        rows=max(round(rows), int(sampled)),
        sampled=int(sampled),
        exact_rows=exact,
        keys=keys,
        doubts=doubts,
        several=several,
    )


def _spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` things, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _with_values(tables: Iterable[pa.Table]) -> set[str]:
    """The columns of which some table has a value."""
    return {one.name for table in tables for one in table.schema if _is_known(one.type)}


def _is_known(kind: pa.DataType) -> bool:
    """Whether some value shows the type."""
    return not pa.types.is_null(kind.value_type if is_list(kind) else kind)


def _late(
    files: Sequence[ForeignFile], names: Collection[str], keys: JsonKeys
) -> Iterator[_SampledRows]:
    """Lines of JSON that have values of these columns, from wherever the first lie."""
    waiting = {name: _key(name) for name in names}
    met: set[str] = set()
    for block in blocks(files, ()) if names else ():
        assert isinstance(block.content, Lines)
        content = block.content.raw.to_pybytes()
        lines = dict[bytes, None]()
        for name, key in waiting.items():
            for one in islice(key.finditer(content), LATE_LINES):
                lines[_line(content, one)] = None
                met.add(name)
        if not lines:
            continue
        rows = json_sample(replace(block.content, raw=pa.py_buffer(b"\n".join(lines))), keys)
        found = _with_values([rows]) & {*waiting}
        if found:
            columns = [one for one in rows.column_names if one in found]
            yield _SampledRows(block.file, rows.select(columns), late=True)
        for name in found:
            del waiting[name]
        if not waiting:
            return
    whole = {where[0] for where in keys.nested.values()}  # an object, not a field of it
    unclear = [name for name in waiting if name in met - whole]
    if unclear:
        yield _SampledRows(files[0], pa.table({name: pa.nulls(1) for name in unclear}), late=True)


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


def _parquet_sample(file: ForeignFile) -> tuple[pa.Table, float]:
    with input_file(file.path) as source, opened_parquet(source, file) as opened:
        parts = []
        spots = _spread(opened.num_row_groups, SPOTS)
        for first, after in pairwise([*spots, opened.num_row_groups]):
            rows = 0
            # Where groups have few rows, several are read, one after another.
            for group in range(first, min(first + SPOT_GROUPS, after)):
                wanted = _places(opened.metadata.row_group(group), len(spots))
                try:
                    batches = opened.iter_batches(GROUP_ROWS, row_groups=[group])
                    numbered = islice(enumerate(batches), wanted[-1] + 1)
                    found = [batch for number, batch in numbered if number in wanted]
                except (pa.ArrowException, OSError) as error:
                    raise damaged_group(file, group, error) from error
                for batch in found:
                    table = pa.table(batch.columns, names=list(file.roots))
                    parts.append(without_views(table))
                    rows += batch.num_rows
                if rows >= SPOT_ROWS:
                    break
        if not parts:
            empty = opened.schema_arrow.empty_table().columns
            parts.append(without_views(pa.table(empty, names=list(file.roots))))
        fields = {name: file.nested.get(name, (name,)) for name in file.names}
        return of_fields(pa.concat_tables(parts), fields), float(opened.metadata.num_rows)


def _places(group: pq.RowGroupMetaData, groups: int) -> list[int]:
    """The batches of a row group that are sampled."""
    places = -(-FEW_GROUPS // groups)
    if places == 1 or group.total_byte_size > GROUP_BYTES:
        return [0]
    return _spread(max(1, -(-group.num_rows // GROUP_ROWS)), places)


def _line_sample(file: ForeignFile, keys: JsonKeys) -> tuple[pa.Table, float]:
    size, share = file.size, 1.0
    with input_file(file.path) as packed:
        if file.compression:
            head, ended, share = _unpacked_head(file, packed)
        else:
            ended = size - file.start <= FIRST_BYTES + SPOTS * SPOT_BYTES
            packed.seek(file.start)
            head = packed.read(size - file.start if ended else FIRST_BYTES)
        lines = first_lines(file, head, ended=ended)
        if lines is None and not ended:  # its first row is longer than that
            cut = next(cut_lines(file, 0, 0))
            lines, share = cut.lines, cut.read / size if file.compression else 1.0
        if lines is None:  # a header alone
            return pa.table({name: pa.array([], pa.string()) for name in file.names}), 0.0
        parts, seen = [_sampled(lines, keys)], lines.raw.size
        over_lines = file.format == "text" and lines.raw.to_pybytes().count(b"\n") > len(parts[0])
        for spot in () if ended or file.compression else _spots(packed, file.start, size):
            found = _rows_at(file, spot, keys, quotes=file.quotes and over_lines)
            if found is not None:
                parts.append(found[0])
                seen += found[1]
    found_rows = _stacked(parts, file, keys)
    whole = (size - file.start) if not file.compression else seen / share
    total = found_rows.num_rows * whole / max(seen, 1)
    return found_rows, float(found_rows.num_rows) if seen >= whole else total


def _unpacked_head(file: ForeignFile, packed: pa.NativeFile) -> tuple[bytes, bool, float]:
    """What a compressed file begins with, whether it is all, and the share of the file that it was
    packed in."""
    with pa.CompressedInputStream(packed, file.compression) as stream:
        try:
            head = stream.read(PACKED_BYTES)[file.start :]
        except (pa.ArrowException, OSError) as error:
            raise cut_short(file.path, file.compression, "cannot be unpacked", error) from error
        ended = len(head) < PACKED_BYTES - file.start
        return head, ended, 1.0 if ended else max(packed.tell(), 1) / file.size


def _sampled(lines: Lines, keys: JsonKeys) -> pa.Table:
    if lines.file.encoding == "utf-8":
        lines = replace(lines, raw=pa.py_buffer(_readable(lines.raw.to_pybytes())))
    if lines.file.format == "jsonl":
        return json_sample(lines, keys)
    return text_rows(lines, lines.file.names, ColumnTypes())


def _rows_at(
    file: ForeignFile, spot: bytes, keys: JsonKeys, *, quotes: bool
) -> tuple[pa.Table, int] | None:
    """The whole rows of a spot, and their bytes. Where `quotes` go on over lines it may begin
    within some: nothing where it can be read both ways, or in none."""
    found, known = [], {*keys.mixed}
    for start in _beginnings(spot, quotes=quotes):
        with suppress(DataError):
            lines = first_lines(file, spot[start:], ended=False)
            if lines is not None:
                found.append((_sampled(lines, keys), lines.raw.size))
    keys.mixed.update(dict.fromkeys(keys.mixed.keys() - known, str(file.path)))  # of no known line
    return found[0] if len(found) == 1 else None


def _beginnings(spot: bytes, *, quotes: bool) -> list[int]:
    """Where the first row may begin: behind the first line, or behind the first that ends outside
    of quotes, whether the spot begins within them or not."""
    found: dict[int, int] = {}
    end, within = 0, 0
    while len(found) < 1 + quotes and (after := spot.find(b"\n", end) + 1):
        within = (within + spot.count(b'"', end, after)) % 2 if quotes else 0
        found.setdefault(within, after)
        end = after
    return [*found.values()]


def _readable(spot: bytes) -> bytes:
    """The spot, with a sign for bytes that are no UTF-8: reading a column tells of those in it."""
    try:
        spot.decode()
    except UnicodeDecodeError:
        return spot.decode(errors="replace").encode()
    return spot


def _spots(file: pa.NativeFile, start: int, size: int) -> Iterator[bytes]:
    """Bytes from places all over the rest, behind the beginning."""
    begin = start + FIRST_BYTES
    for index in range(SPOTS):
        file.seek(begin + (size - begin - SPOT_BYTES) * index // (SPOTS - 1))
        yield file.read(SPOT_BYTES)


def _stacked(parts: Sequence[pa.Table], file: ForeignFile, keys: JsonKeys) -> pa.Table:
    """The parts of a file as one table; a column whose types have nothing in common is left out."""

    def as_one(names: Collection[str]) -> pa.Table:
        each = [part.select([one for one in part.column_names if one in names]) for part in parts]
        return _as_one(each)

    names = dict.fromkeys(name for part in parts for name in part.column_names)
    try:
        return as_one(names)
    except pa.ArrowException:
        for name in names:
            try:
                as_one([name])
            except pa.ArrowException:
                keys.mixed[name] = str(file.path)
        return as_one([name for name in names if name not in keys.mixed])


def _as_one(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all, each column in the narrowest type that holds it; `ArrowException` where
    there is none."""
    every = [one for table in tables for one in table.schema]
    unsigned = {
        one.name: one.type for one in every if one.type in (pa.uint64(), pa.list_(pa.uint64()))
    }
    return pa.concat_tables([_cast(one, unsigned) for one in tables], promote_options="permissive")


def _cast(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """The table, its integers of these columns as these types."""
    if types.keys().isdisjoint(table.column_names):
        return table
    integers = (pa.int64(), pa.list_(pa.int64()))
    return table.cast(
        pa.schema(
            (one.name, types.get(one.name, one.type) if one.type in integers else one.type)
            for one in table.schema
        )
    )


def _common_types(
    parts: Sequence[_SampledRows],
    keys: JsonKeys,
    doubts: list[str],
    wanted: Collection[str],
    several: dict[str, Sequence[pa.DataType]],
) -> dict[str, pa.ChunkedArray]:
    """The columns of all parts: nulls where the rows of one lack a column. Those that are texts for
    want of a common type are added to `several`."""
    nested = keys.nested
    inner = {where[:count] for where in nested.values() for count in range(1, len(where))}
    columns: dict[str, pa.ChunkedArray] = {}
    for name in dict.fromkeys(name for part in parts for name in part.rows.column_names):
        if is_within(name, keys.mixed):
            continue
        if is_within(name, keys.mappings) and (name in keys.mappings or name not in wanted):
            continue
        having = [part for part in parts if name in part or not part.late]
        each = [part.column(name) for part in having]
        try:
            if parts[0].file.format == "parquet":
                each = _alike(name, each, doubts)
            column = _as_one(each)[name]
        except pa.ArrowException:
            if wanted and name not in wanted:
                continue  # files may differ in what the schema does not name
            parquet = parts[0].file.format == "parquet"
            texts = _as_texts([one[name] for one in each]) if parquet else None
            if texts is None and wanted and parquet:
                continue  # and in what it names: each file is read by its own types
            if texts is None:
                raise _types_differ(name, having) from None
            column = texts
            kinds = [part.column(name).schema.types[0] for part in having]
            several[name] = [*dict.fromkeys(one for one in kinds if not pa.types.is_null(one))]
            doubts.append(
                f"{name!r} has several types: an id that is hashed or of a vocabulary may, but "
                "nothing else"
            )
        # An object that is null or an empty list in this sample is no column beside its fields.
        if _is_known(column.type) or nested.get(name, (name,)) not in inner:
            columns[name] = column
    return columns


def _alike(name: str, tables: list[pa.Table], doubts: list[str]) -> list[pa.Table]:
    """A column of Parquet, whose types may differ as the rows of a table do: single values are
    lists of one beside lists, flags and decimals numbers beside these, and times of any unit and
    zone times."""
    kinds = {kind for table in tables if not pa.types.is_null(kind := table.schema.types[0])}
    if len(kinds) < 2:
        return tables
    columns = [table[name] for table in tables]
    if any(map(is_list, kinds)) and not all(map(is_list, kinds)):
        doubts.append(f"{name!r} has lists in some files, and one value a row in others")
        columns = [_in_lists(one) for one in columns]
    elif all(pa.types.is_temporal(kind) for kind in kinds):
        columns = [one.cast(pa.timestamp("us", "UTC"), safe=False) for one in columns]
    elif all(pa.types.is_boolean(kind) or is_number(kind) for kind in kinds):
        columns = [one.cast(pa.int8()) if one.type == pa.bool_() else one for one in columns]
        columns = [of_few_types(one) for one in columns]
    return [pa.table({name: one}) for one in columns]


def _in_lists(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Single values as lists of one; a null stays a null."""
    if is_list(column.type) or pa.types.is_null(column.type):
        return column
    values = column.combine_chunks()
    offsets = pa.array(range(len(values) + 1), pa.int32())
    return pa.chunked_array([pa.ListArray.from_arrays(offsets, values, mask=values.is_null())])


def _as_texts(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray | None:
    """A column of Parquet whose types have no more in common than that they, or the elements of
    their lists, can be written; None where they have not even that."""
    lists = any(is_list(one.type) for one in columns)
    kind = pa.list_(pa.string()) if lists else pa.string()
    try:
        return pa.chunked_array([chunk.cast(kind) for one in columns for chunk in one.chunks], kind)
    except pa.ArrowException:
        return None


def _types_differ(name: str, parts: Sequence[_SampledRows]) -> DataError:
    kinds = {str(part.column(name).schema.types[0]): part.file for part in parts}
    differ = " and ".join(f"{kind} in {file.path}" for kind, file in kinds.items())
    return DataError(
        f"files disagree on the type of column {name!r}: {differ}. Write them alike, import them "
        "separately, or give a schema without the column."
    )
