"""A set of rows in 1.5 bits a row: a bitmap, and the members before each word of 64 rows."""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["RankedBitmap", "has_bit", "has_row", "ones_before"]

I64: TypeAlias = npt.NDArray[np.int64]
I32: TypeAlias = npt.NDArray[np.int32]

U64 = np.uint64
WORD = 64
BLOCK = 1 << 16
"""Rows taken at a time, to bound the memory that it takes to make a set of many."""


class RankedBitmap:
    """Some of `size` rows; how many of them come before a row is its rank:

    rank(r) = ranks[r / 64] + popcount(words[r / 64] & (2^(r mod 64) - 1))
    """

    def __init__(self, rows: Tensor, size: int) -> None:
        """Of `rows` [n] int64, in any order, each once and in [0, size)."""
        self.count = rows.numel()
        num_words = size // WORD + 1
        self.words = torch.zeros(num_words, dtype=torch.int64, device=rows.device)
        for some in rows.split(BLOCK):
            bits = torch.ones_like(some) << (some % WORD)  # bit 63 is the sign
            self.words.index_add_(0, some // WORD, bits)
        self.ranks = torch.zeros(num_words, dtype=torch.int32, device=rows.device)
        torch.cumsum(_popcount(self.words)[:-1], 0, dtype=torch.int32, out=self.ranks[1:])

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.ranks.nbytes

    def holds(self, rows: Tensor) -> Tensor:
        """[n] bool: which of `rows` [n] int64, in [0, size), are members."""
        return (self.words[rows // WORD] >> (rows % WORD)) & 1 == 1

    def rank(self, rows: Tensor) -> Tensor:
        """[n] int64: the members before each of `rows` [n] int64, in [0, size]."""
        if len(rows) > BLOCK:
            return torch.cat([self.rank(some) for some in rows.split(BLOCK)])
        words = self.words[rows // WORD]
        below = words & ((torch.ones_like(rows) << (rows % WORD)) - 1)
        return self.ranks[rows // WORD] + _popcount(below)


def _popcount(words: Tensor) -> Tensor:
    """The bits that are set in each int64."""
    # Shifts keep the sign; each mask drops what they bring in.
    words = words - ((words >> 1) & 0x5555555555555555)
    words = (words & 0x3333333333333333) + ((words >> 2) & 0x3333333333333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (words * 0x0101010101010101) >> 56


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def has_row(words: I64, row: np.uint64) -> Any:
    """`holds` of one row, for kernels: 0 or 1. Unsigned, so that no index is tried for its sign."""
    return has_bit(U64(words[row >> U64(6)]), row)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def has_bit(word: np.uint64, row: np.uint64) -> Any:
    """Of the word of a row, for kernels: 0 or 1."""
    return (word >> (row & U64(63))) & U64(1)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def ones_before(word: np.uint64, row: np.uint64) -> Any:
    """Of the word of a row, how many of the members in it come before the row, for kernels."""
    bits = word & ((U64(1) << (row & U64(63))) - U64(1))
    bits -= (bits >> U64(1)) & U64(0x5555555555555555)
    bits = (bits & U64(0x3333333333333333)) + ((bits >> U64(2)) & U64(0x3333333333333333))
    bits = (bits + (bits >> U64(4))) & U64(0x0F0F0F0F0F0F0F0F)
    return (bits * U64(0x0101010101010101)) >> U64(56)
