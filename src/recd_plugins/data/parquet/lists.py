"""Columns of lists, decoded from the pages of a stripe by kernels of our own.

Arrow reads levels value by value; the kernels read 64 at a time. Columns of kinds that nearly all
files have are decoded here: lists of numbers, of which none is missing, by way of a dictionary or
not. Arrow decodes all others, and all that seems damaged, so that its errors stay what they are.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.compat.kept_memory import kept_memory
from recd_plugins.compat.zstd_function import zstd_function
from recd_plugins.data.parquet.coalesced_reads import FetchedFile
from recd_plugins.data.parquet.levels import (
    DecodedLists,
    StoredPages,
    read_page,
    read_zstd_pages,
)
from recd_plugins.data.parquet.pages import (
    CODECS,
    ColumnPage,
    OtherPages,
    decompressed,
    first_byte,
    pages_of,
)

__all__ = ["ListColumn", "ReadLists", "decode_lists", "list_columns"]

LEAST = 128 << 10
"""The bytes from which a column is decoded here: a smaller one takes Arrow less time."""
NUMBERS = {"int32": "INT32", "int64": "INT64", "float": "FLOAT", "double": "DOUBLE"}
"""The numbers of lists that are decoded here, and what Parquet calls them."""
MOST = np.iinfo(np.int32).max

Counts: TypeAlias = tuple[int, int, int]
"""The lists, the numbers and the missing lists that were read; -1 lists if Arrow must decode."""


class ListColumn(NamedTuple):
    """A column of a stripe that may be decoded here."""

    field: pa.Field
    first_byte: int
    stored_size: int
    """The bytes it takes in the file."""
    codec: str | None
    size: int
    """The bytes it takes decompressed."""
    num_rows: int
    num_values: int
    """Its numbers, empty lists and missing lists."""
    full: int
    """The definition level of a number."""


def list_columns(
    file: pq.FileMetaData,
    schema: pa.Schema,
    group: int,
    names: Sequence[str],
    wanted: Iterable[str],
) -> list[ListColumn]:
    """The wanted columns of a stripe that may be decoded here. Its chunks are of the columns
    `names`."""
    wanted, described = {*wanted}, file.row_group(group)
    chunks = [described.column(index) for index in range(described.num_columns)]
    of_name = Counter(names)
    found = []
    for index, (name, chunk) in enumerate(zip(names, chunks, strict=True)):
        if name not in wanted or of_name[name] > 1 or chunk.total_uncompressed_size < LEAST:
            continue
        field, levels = schema.field(name), file.schema.column(index)
        if _is_familiar(field, chunk, levels):
            column = ListColumn(
                field,
                first_byte(chunk),
                chunk.total_compressed_size,
                CODECS[chunk.compression],
                chunk.total_uncompressed_size,
                described.num_rows,
                chunk.num_values,
                levels.max_definition_level,
            )
            found.append(column)
    return found


def _is_familiar(field: pa.Field, chunk: pq.ColumnChunkMetaData, levels: pq.ColumnSchema) -> bool:
    kind = field.type
    if not pa.types.is_list(kind) or levels.max_repetition_level != 1:
        return False
    full = 1 + field.nullable + kind.value_field.nullable
    return (
        NUMBERS.get(str(kind.value_type)) == chunk.physical_type
        and levels.max_definition_level == full
        and chunk.compression in CODECS
        and 0 <= chunk.num_values <= MOST
    )


class ReadLists(NamedTuple):
    """What came of a column."""

    name: str
    lists: pa.ListArray | None
    """None if Arrow must decode it."""
    io_seconds: float
    """What reading its bytes adds to the time of all columns."""


def decode_lists(
    columns: Sequence[ListColumn], file: FetchedFile, *, threads: bool
) -> Iterator[ReadLists]:
    """Each column of the file. With `threads`, as many as Arrow has begin at once."""
    pool, at_once = kept_memory(), pa.cpu_count() if threads and len(columns) > 1 else 1
    each = _threads(os.getpid(), at_once).map if at_once > 1 else map

    def read(column: ListColumn) -> ReadLists:
        began = time.perf_counter()
        data = file.span(column.first_byte, column.stored_size)
        seconds = (time.perf_counter() - began) / at_once
        return ReadLists(column.field.name, _decoded(column, data, pool), seconds)

    return iter(each(read, columns))


@lru_cache(maxsize=1)
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """The threads for this process: a forked process has none of its parent's."""
    return ThreadPoolExecutor(count, thread_name_prefix="recd-lists")


def _decoded(
    column: ListColumn, data: memoryview, pool: pa.MemoryPool | None
) -> pa.ListArray | None:
    try:
        return _lists(column, pages_of(data, column.size), pool)
    except OtherPages:
        return None


def _lists(
    column: ListColumn, pages: Sequence[ColumnPage], pool: pa.MemoryPool | None
) -> pa.ListArray:
    kind, nullable = column.field.type, column.field.nullable
    number = np.dtype(kind.value_type.to_pandas_dtype())
    stored = np.dtype(f"i{number.itemsize}")  # bits are copied, whatever they mean
    codec = None if column.codec is None else pa.Codec(column.codec)
    dictionary = _numbers(b"", stored)
    if pages and pages[0].is_dictionary:
        dictionary = _dictionary(pages[0], decompressed(pages[0], codec, pool), stored)
        pages = pages[1:]
    if any(page.is_dictionary or page.num_values < 0 for page in pages):
        raise OtherPages("a dictionary behind other pages")
    if sum(page.num_values for page in pages) != column.num_values:
        raise OtherPages("other values than the footer says")
    offsets = pa.allocate_buffer(4 * (column.num_rows + 1), memory_pool=pool)
    numbers = pa.allocate_buffer(column.num_values * number.itemsize, memory_pool=pool)
    lists = DecodedLists(
        full=column.full,
        may_lack=nullable,
        dictionary=dictionary,
        offsets=np.frombuffer(offsets, np.int32),
        there=np.full((column.num_rows + 7) // 8 if nullable else 0, 255, np.uint8),
        numbers=np.frombuffer(numbers, stored),
    )
    lists.offsets[0] = 0
    if column.codec == "zstd" and zstd_function():
        done = _read_zstd(pages, pool, lists)
    else:
        done = _read(pages, codec, pool, lists)
    if done[0] != column.num_rows:
        raise OtherPages("pages that are damaged, or numbers that are missing")
    _, numel, missing = done
    values = pa.Array.from_buffers(kind.value_type, numel, [None, numbers], 0)
    bits = pa.py_buffer(lists.there) if missing else None
    return pa.Array.from_buffers(kind, column.num_rows, [bits, offsets], missing, children=[values])


def _read_zstd(
    pages: Sequence[ColumnPage], pool: pa.MemoryPool | None, lists: DecodedLists
) -> Counts:
    """All pages by one call, in which nobody needs the GIL."""
    found = [np.frombuffer(page.stored, np.uint8) for page in pages]
    checksums = [-1 if page.checksum is None else page.checksum for page in pages]
    places = [(one.ctypes.data, len(one), 1) for one in found]
    stored = StoredPages(
        places=np.array(places, np.int64).reshape(-1, 3),
        sizes=np.array([page.size for page in pages], np.int64),
        checksums=np.array(checksums, np.int64),
        counts=np.array([page.num_values for page in pages], np.int64),
        coded=np.array([page.coded for page in pages], np.bool_),
    )
    scratch = pa.allocate_buffer(max((page.size for page in pages), default=0), memory_pool=pool)
    done: Counts = read_zstd_pages(
        zstd_function(), tuple(stored), np.frombuffer(scratch, np.uint8), tuple(lists)
    )
    return done


def _read(
    pages: Sequence[ColumnPage],
    codec: pa.Codec | None,
    pool: pa.MemoryPool | None,
    lists: DecodedLists,
) -> Counts:
    """One page after another, each decompressed by Arrow."""
    done: Counts = (0, 0, 0)
    for page in pages:
        data = _numbers(decompressed(page, codec, pool), np.dtype(np.uint8))
        done = read_page(data, page.num_values, page.coded, tuple(lists), done)
        if done[0] < 0:
            break
    return done


def _dictionary(
    page: ColumnPage, data: Any, stored: np.dtype[np.signedinteger]
) -> npt.NDArray[np.signedinteger]:
    """The numbers that the other pages look up."""
    if len(data) != page.num_values * stored.itemsize:
        raise OtherPages("a dictionary of another size than its header has")
    return _numbers(data, stored)


def _numbers(body: Any, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Bytes as numbers that nobody may write to: a kernel is compiled for each kind of array."""
    numbers = np.frombuffer(body, kind)
    numbers.flags.writeable = False
    return numbers
