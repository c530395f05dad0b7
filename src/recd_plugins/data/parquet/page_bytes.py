"""For kernels that read pages: the checksum of their bytes, and libzstd's function."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]  # numba's own, without stubs
from numba.core import types
from numba.extending import intrinsic

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.rows.bits import word_at

__all__ = ["call_zstd", "crc32"]

U8 = npt.NDArray[np.uint8]

BYTE = np.uint64(255)
STEP = 16
"""How many bytes of a checksum are looked up at a time."""


def _tables() -> npt.NDArray[np.uint32]:
    """[STEP · 256]: what a byte does to the checksum of as many bytes as follow it, and itself."""
    tables = np.empty((STEP, 256), np.uint32)
    found = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        found = (found >> np.uint32(1)) ^ (found & np.uint32(1)) * np.uint32(0xEDB88320)
    tables[0] = found
    for behind in range(1, STEP):
        before = tables[behind - 1]
        tables[behind] = (before >> np.uint32(8)) ^ found[before & np.uint32(255)]
    return tables.reshape(-1)


TABLES = _tables()


@kernel
def crc32(data: U8) -> Any:
    """The CRC-32 of bytes, as zlib computes it."""
    crc, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    whole = len(data) - len(data) % STEP
    for at in range(0, whole, STEP):
        one, other = word_at(data, at), word_at(data, at + 8)
        # Only four lookups wait for those of the bytes before.
        others = _four(one >> half, 8) ^ (_four(other, 4) ^ _four(other >> half, 0))
        crc = _four(one ^ crc, 12) ^ others
    for i in range(whole, len(data)):
        crc = crc >> np.uint64(8) ^ TABLES[(crc ^ np.uint64(data[i])) & BYTE]
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _four(word: np.uint64, behind: int) -> Any:
    """What the four lower bytes of a word do to a checksum, with `behind` bytes behind them."""
    first = TABLES[np.uint64(256 * (behind + 3)) + (word & BYTE)]
    second = TABLES[np.uint64(256 * (behind + 2)) + (word >> np.uint64(8) & BYTE)]
    third = TABLES[np.uint64(256 * (behind + 1)) + (word >> np.uint64(16) & BYTE)]
    fourth = TABLES[np.uint64(256 * behind) + (word >> np.uint64(24) & BYTE)]
    return np.uint64((first ^ second) ^ (third ^ fourth))


@intrinsic  # type: ignore[untyped-decorator]
def call_zstd(_typing: Any, _zstd: Any, _into: Any, _size: Any, _data: Any, _length: Any) -> Any:
    """Calls `ZSTD_decompress` at an address, for `_length` bytes at `_data`, whose place has room
    for `_size`. Returns how many there are; errors are numbers below 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, into, size, data, length = arguments
        number, pointer = ir.IntType(64), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(number, [pointer, number, pointer, number])
        function = builder.inttoptr(address, kind.as_pointer())
        places = [builder.inttoptr(place, pointer) for place in (into, data)]
        return builder.call(function, [places[0], size, places[1], length])

    number = types.int64
    return number(number, number, number, number, number), generate
