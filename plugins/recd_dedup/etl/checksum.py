"""A checksum of rows that does not depend on their order: the sum of the rows' hashes, mod 2^64.

A row's hash covers every column, by name: ids with their place in the list, floats by their bits.
Tables that hold the same rows equally often have equal checksums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recd_dedup.hashing import U64, salt
from recd_plugins.api import so_many

__all__ = ["Checksum", "checksum", "row_hashes"]


@dataclass(frozen=True)
class Checksum:
    """The number of rows, and the sum of their hashes."""

    rows: int = 0
    total: int = 0

    @classmethod
    def of(cls, hashes: U64) -> Checksum:
        return cls(hashes.size, int(hashes.sum(dtype=np.uint64)))

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.rows + other.rows, (self.total + other.total) % (1 << 64))

    def __str__(self) -> str:
        return f"{so_many(self.rows, 'row')} with sum {self.total:016x}"


def checksum(chunks: Iterable[pa.Table]) -> Checksum:
    """The checksum of the rows of all chunks."""
    return sum((Checksum.of(row_hashes(chunk)) for chunk in chunks), Checksum())


def row_hashes(chunk: pa.Table) -> U64:
    """[N] the hash of each row of a chunk, which must have the types of `Schema.arrow`."""
    from recd_dedup.etl.row_hash import add_lists, add_values, finish  # numba, late

    hashes = np.zeros(chunk.num_rows, np.uint64)
    for name in chunk.column_names:
        start = np.uint64(salt(0, name))
        first = 0
        for part in chunk[name].chunks:
            rows = hashes[first : first + len(part)]
            first += len(part)
            if pa.types.is_list(part.type):
                add_lists(rows, part.offsets.to_numpy(), _bits(part.values), start)
            elif pa.types.is_fixed_size_list(part.type):
                offsets = np.arange(len(part) + 1) * part.type.list_size
                add_lists(rows, offsets, _bits(part.flatten()), start)
            else:
                add_values(rows, _bits(part), start)
    finish(hashes)
    return hashes


def _bits(array: pa.Array) -> U64:
    """[N] the bits of numbers, as integers."""
    values = array.to_numpy()
    bits: U64 = values.view(np.dtype(f"u{values.itemsize}")).astype(np.uint64, copy=False)
    return bits
