"""The names of columns in a Parquet footer: found in its bytes, and replaced there.

A footer is a struct in Thrift's compact protocol. Everything else in it stays as it is, byte for
byte, so readers of the new footer see only the new names: in types, in statistics and when they ask
for columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from recd_plugins.data.parquet.thrift import BINARY, CompactReader, number_bytes

__all__ = ["StoredColumn", "columns_of", "renamed"]

SCHEMA, ROW_GROUPS = 2, 4
"""Fields of the footer; below, those of what is in it."""
REPETITION, NAME, CHILDREN, FIELD_ID = 3, 4, 5, 9
CHUNKS, CHUNK_METADATA, CHUNK_PATH = 1, 3, 3
REPEATED = 2
TAIL = 8
"""Bytes after a footer: its length, and Parquet's magic bytes."""


@dataclass
class StoredColumn:
    """A column as a footer has it, or a field within one."""

    name: str
    number: int | None
    """Its `field_id`."""
    repeated: bool
    at: int
    """The position of its name in the footer, which identifies it."""
    within: list[StoredColumn] = field(default_factory=list)

    def every(self) -> Iterator[StoredColumn]:
        """The column, and all fields within it."""
        yield self
        for one in self.within:
            yield from one.every()


def columns_of(raw: bytes) -> list[StoredColumn]:
    """The columns of a footer, which is passed with the bytes after it in the file."""
    thrift = CompactReader(raw)
    for number, kind in thrift.fields():
        if number == SCHEMA:
            size, _ = thrift.items()
            elements = iter([_element(thrift) for _ in range(size)])
            root = StoredColumn("", None, repeated=False, at=0)
            _fill(root, 1, elements)
            return root.within[0].within
        thrift.skip(kind)
    raise ValueError("it has no schema")


def _fill(group: StoredColumn, count: int, elements: Iterator[tuple[StoredColumn, int]]) -> None:
    for _ in range(count):
        column, inner = next(elements, (None, 0))
        if column is None:
            raise ValueError("its schema has fewer columns than it says")
        group.within.append(column)
        _fill(column, inner, elements)


def renamed(raw: bytes, columns: Iterable[StoredColumn], names: Mapping[int, str]) -> bytes:
    """The footer with new names for some of its columns; `names` has these by the column's `at`."""
    edits = [
        (one.at, one.at + len(_text(one.name)), _text(names[one.at]))
        for column in columns
        for one in column.every()
        if one.at in names
    ]
    paths = [path for column in columns for path in _paths(column, names, (), changed=False)]
    edits += _paths_replaced(raw, paths)
    parts, done = [], 0
    for first, after, text in sorted(edits):
        parts += [raw[done:first], text]
        done = after
    parts.append(raw[done:-TAIL])
    footer = b"".join(parts)
    return footer + len(footer).to_bytes(4, "little") + raw[-4:]


def _paths(
    column: StoredColumn, names: Mapping[int, str], before: tuple[str, ...], *, changed: bool
) -> Iterator[tuple[str, ...] | None]:
    """The new path of each column that holds values; None if it is unchanged."""
    here = (*before, names.get(column.at, column.name))
    changed = changed or column.at in names
    if not column.within:
        yield here if changed else None
    for one in column.within:
        yield from _paths(one, names, here, changed=changed)


def _element(thrift: CompactReader) -> tuple[StoredColumn, int]:
    """A column of the schema, and how many of the following ones are within it."""
    column, count = StoredColumn("", None, repeated=False, at=0), 0
    for number, kind in thrift.fields():
        if number == NAME:
            column.at = thrift.at
            column.name = thrift.text()
        elif number == REPETITION:
            column.repeated = thrift.signed() == REPEATED
        elif number == CHILDREN:
            count = thrift.signed()
        elif number == FIELD_ID:
            column.number = thrift.signed()
        else:
            thrift.skip(kind)
    return column, count


def _paths_replaced(
    raw: bytes, paths: list[tuple[str, ...] | None]
) -> Iterator[tuple[int, int, bytes]]:
    """First byte, end and new bytes of the path of each chunk, over all row groups."""
    thrift = CompactReader(raw)
    for number, kind in thrift.fields():
        if number != ROW_GROUPS:
            thrift.skip(kind)
            continue
        for _ in range(thrift.items()[0]):
            for of_group, group_kind in thrift.fields():
                if of_group != CHUNKS:
                    thrift.skip(group_kind)
                    continue
                for at in range(thrift.items()[0]):
                    yield from _path_replaced(thrift, paths[at])


def _path_replaced(
    thrift: CompactReader, path: tuple[str, ...] | None
) -> Iterator[tuple[int, int, bytes]]:
    for of_chunk, chunk_kind in thrift.fields():
        if of_chunk != CHUNK_METADATA:
            thrift.skip(chunk_kind)
            continue
        for number, kind in thrift.fields():
            first = thrift.at
            thrift.skip(kind)
            if number == CHUNK_PATH and path is not None:
                yield first, thrift.at, _list(path)


def _text(text: str) -> bytes:
    """A text as it lies in a footer."""
    written = text.encode()
    return number_bytes(len(written)) + written


def _list(texts: tuple[str, ...]) -> bytes:
    size = len(texts)
    long = size > 14
    head = bytes([(15 if long else size) << 4 | BINARY]) + (number_bytes(size) if long else b"")
    return head + b"".join(map(_text, texts))
