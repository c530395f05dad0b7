"""Columns of lists, decoded from the pages of a stripe by kernels of our own.

Arrow reads levels value by value; the kernels read 64 at a time. Columns of kinds that nearly all
files have are decoded here: lists of numbers, of which none is missing, by way of a dictionary or
not. Arrow decodes all others, and all that seems damaged, so that its errors stay what they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.compat.kept_memory import kept_memory
from recd_plugins.data.parquet_pages import CODECS, ColumnPage, OtherPages, pages_of

__all__ = ["ListColumn", "decode_lists", "list_columns"]

LEAST = 64 << 10
"""The bytes from which a column is decoded here: Arrow takes less time for the call."""
NUMBERS = {"int32": "INT32", "int64": "INT64", "float": "FLOAT", "double": "DOUBLE"}
"""The numbers of lists that are decoded here, and what Parquet calls them."""
MOST = np.iinfo(np.int32).max


class ListColumn(NamedTuple):
    """A column of a stripe that may be decoded here."""

    field: pa.Field
    first_byte: int
    size: int
    """The bytes it takes in the file."""
    codec: str | None
    num_rows: int
    most: int
    """More numbers it does not have: its numbers, empty lists and missing ones."""
    full: int
    """The definition level of a number."""


def list_columns(
    file: pq.FileMetaData,
    schema: pa.Schema,
    group: int,
    wanted: Iterable[str],
    first_byte: Callable[[pq.ColumnChunkMetaData], int],
) -> list[ListColumn]:
    """The wanted columns of a stripe that may be decoded here."""
    names, described = {*wanted}, file.row_group(group)
    found = []
    for index in range(described.num_columns):
        chunk = described.column(index)
        name = chunk.path_in_schema.split(".", 1)[0]
        if name not in names or chunk.total_uncompressed_size < LEAST:
            continue
        field, levels = schema.field(name), file.schema.column(index)
        if _is_familiar(field, chunk, levels):
            column = ListColumn(
                field,
                first_byte(chunk),
                chunk.total_compressed_size,
                CODECS[chunk.compression],
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


def decode_lists(
    columns: Sequence[ListColumn], data: Iterable[memoryview], *, threads: bool
) -> Iterator[tuple[str, pa.ListArray | None]]:
    """Each column from its bytes in the file, by its name; None if Arrow must decode it. With
    `threads`, as many as Arrow has begin at once."""
    pool = kept_memory()
    each = _threads(os.getpid(), pa.cpu_count()).map if threads and len(columns) > 1 else map
    found = each(lambda column, bytes_of: _decoded(column, bytes_of, pool), columns, data)
    return zip((one.field.name for one in columns), found, strict=True)


@lru_cache(maxsize=1)
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """The threads for this process: a forked process has none of its parent's."""
    return ThreadPoolExecutor(count, thread_name_prefix="recd-lists")


def _decoded(
    column: ListColumn, data: memoryview, pool: pa.MemoryPool | None
) -> pa.ListArray | None:
    codec = None if column.codec is None else pa.Codec(column.codec)
    try:
        return _lists(column, pages_of(data, codec, pool), pool)
    except OtherPages:
        return None


def _lists(column: ListColumn, pages: list[ColumnPage], pool: pa.MemoryPool | None) -> pa.ListArray:
    from recd_plugins.data.parquet_levels import read_lists  # numba: a second

    kind, rows = column.field.type, column.num_rows
    number = np.dtype(kind.value_type.to_pandas_dtype())
    stored = np.dtype(f"i{number.itemsize}")  # bits are copied, whatever they mean
    of_values = [page for page in pages if not page.is_dictionary]
    dictionary = _dictionary(pages, stored)
    if sum(page.num_values for page in of_values) != column.most:
        raise OtherPages("other pages than the footer says")
    bodies = [np.frombuffer(page.body, np.uint8) for page in of_values]
    places = [(body.ctypes.data, len(body), 1) for body in bodies]
    offsets = pa.allocate_buffer(4 * (rows + 1), memory_pool=pool)
    numbers = pa.allocate_buffer(column.most * number.itemsize, memory_pool=pool)
    there = np.full((rows + 7) // 8 if column.field.nullable else 0, 255, np.uint8)
    lists, numel, lacking = read_lists(
        np.array(places, np.int64).reshape(-1, 3),
        np.array([page.num_values for page in of_values], np.int64),
        np.array([page.coded for page in of_values], np.bool_),
        dictionary,
        column.full,
        column.field.nullable,
        np.frombuffer(offsets, np.int32),
        there,
        np.frombuffer(numbers, stored),
    )
    if lists != rows:
        raise OtherPages("levels that are damaged, or numbers that are missing")
    values = pa.Array.from_buffers(kind.value_type, numel, [None, numbers], 0)
    bits = pa.py_buffer(there) if lacking else None
    return pa.Array.from_buffers(kind, rows, [bits, offsets], lacking, children=[values])


def _dictionary(pages: list[ColumnPage], stored: np.dtype[np.signedinteger]) -> np.ndarray:
    """The numbers that pages of places look up: those of the first page, if it is a dictionary."""
    if any(page.is_dictionary for page in pages[1:]):
        raise OtherPages("a dictionary behind other pages")
    if not pages or not pages[0].is_dictionary:
        return np.empty(0, stored)
    if len(pages[0].body) != pages[0].num_values * stored.itemsize:
        raise OtherPages("a dictionary of another size than its header has")
    return np.frombuffer(pages[0].body, stored)
