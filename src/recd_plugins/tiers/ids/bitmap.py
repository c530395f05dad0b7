"""A set of rows in 1.45 bits a row, whose members before any row are counted by one read.

A word has the bits of 48 rows, and above them the members before it in its group of 1,024
words; so a set of many rows takes one miss of the cache, for the counts before the groups
are few and stay there.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from numba.core import types
from numba.extending import intrinsic
from torch import Tensor

__all__ = ["RankedBitmap", "has_bit", "members_before", "place_of", "word_of"]

I64: TypeAlias = npt.NDArray[np.int64]

U64 = np.uint64
ROWS = 48
"""Of a word."""
GROUP = 1 << 10
"""Words that one count is before. A group's members, 49,152 at most, fit in the 16 bits that a
word's rows leave."""
COUNT_BITS = 0xFFFF
BLOCK = 1 << 16
"""Rows taken at a time, to bound the memory that it takes to make a set of many."""
BIT = U64(6)
"""Bits that a row's place in its word takes."""


class RankedBitmap:
    """Some of `size` rows; how many of them come before a row is its rank:

    rank(r) = ranks[w / 1024] + words[w] / 2^48 + popcount(words[w] & (2^(r mod 48) - 1)),
    w = r / 48, the words unsigned
    """

    def __init__(self, rows: Tensor, size: int) -> None:
        """Of `rows` [n] int64, in any order, each once and in [0, size)."""
        self.count = rows.numel()
        num_words = size // ROWS + 1
        self.words = torch.zeros(num_words, dtype=torch.int64, device=rows.device)
        for some in rows.split(BLOCK):
            self.words.index_add_(0, some // ROWS, torch.ones_like(some) << (some % ROWS))
        counts = _popcount(self.words)
        before = counts.cumsum(0) - counts
        self.ranks = before[::GROUP].clone()
        before -= self.ranks.repeat_interleave(GROUP)[:num_words]
        self.words |= before << ROWS  # bit 63 is the sign

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.ranks.nbytes

    def holds(self, rows: Tensor) -> Tensor:
        """[n] bool: which of `rows` [n] int64, in [0, size), are members."""
        return (self.words[rows // ROWS] >> (rows % ROWS)) & 1 == 1

    def rank(self, rows: Tensor) -> Tensor:
        """[n] int64: the members before each of `rows` [n] int64, in [0, size]."""
        if len(rows) > BLOCK:
            return torch.cat([self.rank(some) for some in rows.split(BLOCK)])
        words = self.words[rows // ROWS]
        below = words & ((torch.ones_like(rows) << (rows % ROWS)) - 1)
        in_group = (words >> ROWS) & COUNT_BITS
        return self.ranks[rows // (ROWS * GROUP)] + in_group + _popcount(below)


def _popcount(words: Tensor) -> Tensor:
    """The bits that are set in each int64."""
    # Shifts keep the sign; each mask drops what they bring in.
    words = words - ((words >> 1) & 0x5555555555555555)
    words = (words & 0x3333333333333333) + ((words >> 2) & 0x3333333333333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (words * 0x0101010101010101) >> 56


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def word_of(row: np.uint64) -> Any:
    """Which word a row is in, for kernels; unsigned, so that no index is tried for its sign."""
    return row // U64(ROWS)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def place_of(ranks: I64, row: np.uint64, word: np.uint64) -> Any:
    """What a kernel keeps of a row until its word is there: 64 · rank of its group + its bit."""
    return (U64(ranks[word // U64(GROUP)]) << BIT) | (row - word * U64(ROWS))


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def has_bit(word: np.uint64, place: np.uint64) -> Any:
    """`holds` of the row of a place, for kernels: 0 or 1."""
    return (word >> (place & U64(63))) & U64(1)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def members_before(word: np.uint64, place: np.uint64) -> Any:
    """`rank` of the row of a place, for kernels."""
    below = word & ((U64(1) << (place & U64(63))) - U64(1))
    return (place >> BIT) + (word >> U64(ROWS)) + _ones(below)


@intrinsic  # type: ignore[untyped-decorator]
def _ones(_typing: Any, _word: Any) -> Any:
    """The bits that are set in a uint64: one instruction, and in vectors where there are any."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate
