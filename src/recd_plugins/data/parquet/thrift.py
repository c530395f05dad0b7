"""Thrift's compact protocol, in which Parquet writes footers and the headers of pages."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = [
    "BINARY",
    "INT32",
    "LIST",
    "MAP",
    "SET",
    "STRUCT",
    "CompactReader",
    "number_at",
    "number_bytes",
]

TRUE, FALSE, BYTE, INT16, INT32, INT64, DOUBLE = 1, 2, 3, 4, 5, 6, 7
BINARY, LIST, SET, MAP, STRUCT = 8, 9, 10, 11, 12
"""The types of values."""


class CompactReader:
    """Reads bytes value by value; the next one begins at `at`.

    It raises IndexError if the bytes end too early, ValueError if they are not of this protocol.
    """

    def __init__(self, raw: bytes | memoryview, at: int = 0) -> None:
        self.at = at
        self._raw = raw

    def fields(self) -> Iterator[tuple[int, int]]:
        """The number and the type of each field of a struct; the caller must read its value before
        asking for the next one."""
        raw, number = self._raw, 0
        while head := raw[self.at]:
            self.at += 1
            number = number + (head >> 4) if head > 15 else self.signed()
            yield number, head & 15
        self.at += 1

    def items(self) -> tuple[int, int]:
        """How many items a list has, and of which type."""
        head = self._byte()
        return self._fitting(self.unsigned() if head >> 4 == 15 else head >> 4), head & 15

    def text(self) -> str:
        length = self.unsigned()
        self.at += length
        return str(self._raw[self.at - length : self.at], "utf-8")

    def signed(self) -> int:
        number = self.unsigned()
        return (number >> 1) ^ -(number & 1)

    def unsigned(self) -> int:
        byte = self._raw[self.at]
        if byte < 128:  # nearly all numbers have one byte
            self.at += 1
            return byte
        number, self.at = number_at(self._raw, self.at)
        return number

    def skip(self, kind: int) -> None:
        """Goes past the value of a field."""
        if kind in (INT16, INT32, INT64):
            self.unsigned()
        elif kind == BINARY:
            length = self.unsigned()
            self.at += length
        elif kind in (LIST, SET):
            size, of = self.items()
            for _ in range(size):
                self._skip_item(of)
        elif kind == STRUCT:
            for _, of in self.fields():
                self.skip(of)
        elif kind == MAP:
            size = self._fitting(self.unsigned())
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip_item(kinds >> 4)
                self._skip_item(kinds & 15)
        elif kind in (BYTE, DOUBLE):
            self.at += 1 if kind == BYTE else 8
        elif kind not in (TRUE, FALSE):  # the type of a boolean field is its value
            raise ValueError(f"no value has the type {kind}")

    def _skip_item(self, kind: int) -> None:
        if kind in (TRUE, FALSE):
            self.at += 1
        else:
            self.skip(kind)

    def _fitting(self, size: int) -> int:
        """A number of items, each of which has one byte at least: damaged bytes may claim more
        than anybody can wait for."""
        if size > len(self._raw) - self.at:
            raise IndexError(f"{size} items, and {len(self._raw) - self.at} bytes")
        return size

    def _byte(self) -> int:
        self.at += 1
        return self._raw[self.at - 1]


def number_at(raw: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number of 7 bits a byte that begins at a place, and where it ends."""
    number = shift = 0
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def number_bytes(number: int) -> bytes:
    """A number as `number_at` reads it."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])
