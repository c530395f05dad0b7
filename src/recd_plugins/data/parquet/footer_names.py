"""The names of columns in a Parquet footer: found in its bytes, and replaced there.

A footer is a struct in Thrift's compact protocol. Everything else in it stays as it is, byte for
byte, so readers of the new footer see only the new names: in types, in statistics and when they ask
for columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["StoredColumn", "columns_of", "renamed"]

SCHEMA, ROW_GROUPS = 2, 4
"""Fields of the footer; below, those of what is in it."""
REPETITION, NAME, CHILDREN, FIELD_ID = 3, 4, 5, 9
CHUNKS, CHUNK_METADATA, CHUNK_PATH = 1, 3, 3
REPEATED = 2
TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
NUMBERS = (4, 5, 6)
"""Types of Thrift's compact protocol."""
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
    thrift = _Thrift(raw)
    for number, kind in thrift.fields():
        if number == SCHEMA:
            size, _ = thrift.items()
            elements = iter([thrift.element() for _ in range(size)])
            root, count = next(elements)
            _fill(root, count, elements)
            return root.within
        thrift.skip(kind)
    raise ValueError("it has no schema")


def _fill(group: StoredColumn, count: int, elements: Iterator[tuple[StoredColumn, int]]) -> None:
    for _ in range(count):
        column, inner = next(elements)
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
    edits += _Thrift(raw).paths_replaced(paths)
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


class _Thrift:
    """Thrift's compact protocol, value by value."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """The number and the type of each field of a struct; the caller must read its value before
        asking for the next one."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            yield number, head & 15

    def items(self) -> tuple[int, int]:
        """How many items a list has, and of which type."""
        head = self._byte()
        return (self._unsigned() if head >> 4 == 15 else head >> 4), head & 15

    def element(self) -> tuple[StoredColumn, int]:
        """A column of the schema, and how many of the following ones are within it."""
        column, count = StoredColumn("", None, repeated=False, at=0), 0
        for number, kind in self.fields():
            if number == NAME:
                column.at = self._at
                column.name = self._binary().decode()
            elif number == REPETITION:
                column.repeated = self._signed() == REPEATED
            elif number == CHILDREN:
                count = self._signed()
            elif number == FIELD_ID:
                column.number = self._signed()
            else:
                self.skip(kind)
        return column, count

    def paths_replaced(
        self, paths: list[tuple[str, ...] | None]
    ) -> Iterator[tuple[int, int, bytes]]:
        """First byte, end and new bytes of the path of each chunk, over all row groups."""
        for number, kind in self.fields():
            if number != ROW_GROUPS:
                self.skip(kind)
                continue
            for _ in range(self.items()[0]):
                for of_group, group_kind in self.fields():
                    if of_group != CHUNKS:
                        self.skip(group_kind)
                        continue
                    for at in range(self.items()[0]):
                        yield from self._chunk(paths[at])

    def _chunk(self, path: tuple[str, ...] | None) -> Iterator[tuple[int, int, bytes]]:
        for of_chunk, chunk_kind in self.fields():
            if of_chunk != CHUNK_METADATA:
                self.skip(chunk_kind)
                continue
            for number, kind in self.fields():
                first = self._at
                self.skip(kind)
                if number == CHUNK_PATH and path is not None:
                    yield first, self._at, _list(path)

    def skip(self, kind: int) -> None:
        if kind in NUMBERS:
            self._unsigned()
        elif kind == BINARY:
            self._binary()
        elif kind in (LIST, SET):
            size, of = self.items()
            for _ in range(size):
                self._skip_item(of)
        elif kind == STRUCT:
            for _, of in self.fields():
                self.skip(of)
        elif kind == MAP:
            size = self._unsigned()
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip_item(kinds >> 4)
                self._skip_item(kinds & 15)
        elif kind in (BYTE, DOUBLE):
            self._at += 1 if kind == BYTE else 8
        elif kind not in (TRUE, FALSE):  # the type of a boolean field is its value
            raise ValueError(f"its footer has a value of type {kind}")

    def _skip_item(self, kind: int) -> None:
        if kind in (TRUE, FALSE):
            self._at += 1
        else:
            self.skip(kind)

    def _byte(self) -> int:
        self._at += 1
        return self._raw[self._at - 1]

    def _unsigned(self) -> int:
        found = shift = 0
        while (byte := self._byte()) > 127:
            found |= (byte & 127) << shift
            shift += 7
        return found | byte << shift

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _binary(self) -> bytes:
        length = self._unsigned()
        self._at += length
        return self._raw[self._at - length : self._at]


def _number(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _text(text: str) -> bytes:
    """A text as it lies in a footer."""
    written = text.encode()
    return _number(len(written)) + written


def _list(texts: tuple[str, ...]) -> bytes:
    size = len(texts)
    head = bytes([size << 4 | BINARY]) if size < 15 else bytes([15 << 4 | BINARY]) + _number(size)
    return head + b"".join(map(_text, texts))
