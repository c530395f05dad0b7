"""Sets of rows as bitmaps, in which one word says a row's rank, and what kernels read of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.sparse.rows.bits import ones

__all__ = ["RankedBitmap", "has_bit", "members_before", "rank_and_bit", "word_of_row"]

I64: TypeAlias = npt.NDArray[np.int64]

U64 = np.uint64
ROWS = 48
"""Rows that one word of a bitmap has bits of."""
GROUP = 1 << 10
"""Words that one count is before. A group has at most 49,152 members, a number that fits in the 16
bits which a word's rows leave."""
COUNT_BITS = 0xFFFF
CHUNK = 1 << 16
"""Rows ranked at a time, to bound the memory that it takes to rank many."""
BIT = U64(6)
"""Bits that the number of a row's bit in its word takes."""


class RankedBitmap:
    """A set of some of `size` rows, in 1.45 bits for each of these. A row's rank is the number of
    members before it:

    rank(r) = ranks[w / 1024] + words[w] / 2^48 + popcount(words[w] & (2^(r mod 48) - 1)),
    w = r / 48, the words unsigned

    A word has the bits of 48 rows, and above them the members before it in its group of 1,024
    words; a lookup in a large set then costs one cache miss, since the counts before the groups are
    few and stay in the cache.
    """

    def __init__(self, rows: Iterable[Tensor], size: int) -> None:
        """The members are those of all `rows` [n] int64, in any order, each once and in
        [0, size)."""
        self.count = 0
        num_words = size // ROWS + 1
        self.words = torch.zeros(num_words, dtype=torch.int64, device="cpu")
        for some in rows:
            self.words.index_add_(0, some // ROWS, torch.ones_like(some) << (some % ROWS))
            self.count += len(some)
        counts = _popcount(self.words)
        before = counts.cumsum(0) - counts
        self.ranks = before[::GROUP].clone()
        before -= self.ranks.repeat_interleave(GROUP)[:num_words]
        self.words |= before << ROWS  # bit 63 is the sign

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.ranks.nbytes

    def rank(self, rows: Tensor) -> Tensor:
        """[n] int64: the members before each of `rows` [n] int64, in [0, size]."""
        if len(rows) > CHUNK:
            return torch.cat([self.rank(some) for some in rows.split(CHUNK)])
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
def word_of_row(row: np.uint64) -> Any:
    """The word that a row is in; unsigned, so that no index is tried for its sign."""
    return row // U64(ROWS)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def rank_and_bit(ranks: I64, row: np.uint64, word: np.uint64) -> Any:
    """What a kernel keeps of a row until its word is there: 64 · rank of the word's group + number
    of the row's bit."""
    return (U64(ranks[word // U64(GROUP)]) << BIT) | (row - word * U64(ROWS))


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def has_bit(word: np.uint64, packed: np.uint64) -> Any:
    """Whether the row whose word and `rank_and_bit` these are is a member: 0 or 1."""
    return (word >> (packed & U64(63))) & U64(1)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def members_before(word: np.uint64, packed: np.uint64) -> Any:
    """`rank` of the row whose word and `rank_and_bit` these are."""
    below = word & ((U64(1) << (packed & U64(63))) - U64(1))
    return (packed >> BIT) + (word >> U64(ROWS)) + ones(below)
