"""The pages of a column of a stripe: what their headers say, and their bytes.

Only the kinds of pages are read that nearly all files have; Arrow reads the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.data.parquet.thrift import (
    INT32,
    LIST,
    MAP,
    SET,
    STRUCT,
    CompactReader,
    number_at,
)

__all__ = ["CODECS", "ColumnPage", "OtherPages", "decompressed", "first_byte", "pages_of"]

CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd"}
"""The compressions of columns, and what Arrow calls each."""

# Of Parquet's format: page types, encodings, and the fields of a page's header.
DATA, DICTIONARY = 0, 2
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8
TYPE, SIZE, COMPRESSED_SIZE, CHECKSUM, OF_DATA, OF_DICTIONARY = 1, 2, 3, 4, 5, 7
COUNT, ENCODING, OF_DEFINITION, OF_REPETITION = 1, 2, 3, 4

DEEPEST = 4
"""How many structs may lie in each other; a page's header has two."""


class OtherPages(Exception):
    """Pages of a kind that is not read here, or damaged ones: Arrow reads them, or says what is
    wrong with them."""


class ColumnPage(NamedTuple):
    """A page of values, or the dictionary of those that follow."""

    is_dictionary: bool
    num_values: int
    """The number of its values; empty and missing lists count as one each."""
    coded: bool
    """Whether its values are places in the dictionary."""
    stored: memoryview
    """Its bytes, as they lie in the file."""
    size: int
    """How many bytes they are decompressed."""
    checksum: int | None
    """The CRC-32 of the stored bytes, if its writer computed one."""


def first_byte(chunk: pq.ColumnChunkMetaData) -> int:
    """The place in the file where a column of a stripe begins."""
    first: int = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        first = min(first, chunk.dictionary_page_offset)
    return first


def pages_of(column: memoryview, most: int) -> list[ColumnPage]:
    """The pages that lie end to end in a column's bytes, none of more than `most` bytes; raises
    `OtherPages` for all that is not familiar."""
    try:
        return list(_pages(column, most))
    # A damaged field may also be of another type.
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise OtherPages(str(error)) from error


def decompressed(page: ColumnPage, codec: pa.Codec | None, pool: pa.MemoryPool | None) -> Any:
    """The bytes of a page, whose checksum is verified; raises `OtherPages` if they are damaged."""
    if page.checksum is not None and page.checksum != zlib.crc32(page.stored):
        raise OtherPages("a checksum that differs")
    if codec is None:
        if page.size != len(page.stored):
            raise OtherPages("a page of another size than its header has")
        return page.stored
    try:
        # A block of snappy begins with its size; that of a zstd frame Arrow checks itself.
        if codec.name == "snappy" and number_at(page.stored, 0)[0] != page.size:
            raise OtherPages("a page of another size than its header has")
        return codec.decompress(page.stored, page.size, memory_pool=pool)
    except (IndexError, ValueError, OSError) as error:  # Arrow's are the latter two
        raise OtherPages(str(error)) from error


def _pages(column: memoryview, most: int) -> Iterator[ColumnPage]:
    at = 0
    while at < len(column):
        thrift = CompactReader(column, at)
        header, at = _struct(thrift), thrift.at
        size, stored = header[SIZE], header[COMPRESSED_SIZE]
        if not (0 <= stored <= len(column) - at and 0 <= size <= most):
            raise OtherPages("a page that is longer than its column")
        is_dictionary = header[TYPE] == DICTIONARY
        facts = header[OF_DICTIONARY if is_dictionary else OF_DATA]
        known = isinstance(facts[COUNT], int) and _is_familiar(facts, is_dictionary)
        if header[TYPE] not in (DATA, DICTIONARY) or not known:
            raise OtherPages("another type of page, or other encodings")
        yield ColumnPage(
            is_dictionary,
            facts[COUNT],
            facts[ENCODING] != PLAIN and not is_dictionary,
            column[at : at + stored],
            size,
            header[CHECKSUM] & 0xFFFFFFFF if CHECKSUM in header else None,
        )
        at += stored


def _is_familiar(facts: dict[int, Any], is_dictionary: bool) -> bool:
    if is_dictionary:
        return facts[ENCODING] in (PLAIN, PLAIN_DICTIONARY)
    levels = facts[OF_DEFINITION] == facts[OF_REPETITION] == RLE
    return levels and facts[ENCODING] in (PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY)


def _struct(thrift: CompactReader, depth: int = 0) -> dict[int, Any]:
    """The int32 and structs in a struct, by the numbers of their fields: all that is needed of a
    header."""
    if depth == DEEPEST:
        raise OtherPages("a header of structs in structs")
    found: dict[int, Any] = {}
    for field, kind in thrift.fields():
        if kind == INT32:
            found[field] = thrift.signed()
        elif kind == STRUCT:
            found[field] = _struct(thrift, depth + 1)
        elif kind in (LIST, SET, MAP):  # damaged ones may be endless
            raise OtherPages(f"a header with a field of type {kind}")
        else:
            thrift.skip(kind)
    return found
