"""Ids mixed to 64 evenly spread bits, one id or several into one: MurmurHash3's finalizer.

fmix64 is a bijection of 64 bits:
`h ^= h >>> 33; h *= 0xFF51AFD7ED558CCD; h ^= h >>> 33; h *= 0xC4CEB9FE1A85EC53; h ^= h >>> 33`.
On CPU, ids are mixed in one pass, on the calling thread; elsewhere torch gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.api.rows import kernel

__all__ = ["SPREAD", "fmix64", "fold", "fold_by_torch", "key_of", "mix"]

Words = npt.NDArray[np.uint64]

FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
FIRST, SECOND = (np.uint64(factor) for factor in FACTORS)
SHIFT = np.uint64(33)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: products of ids with it differ in their upper bits."""
LOW = 2**31 - 1
"""The bits that remain after a shift by 33, without copies of the sign bit."""


def key_of(salt: int) -> int:
    """fmix64(salt), as a signed number."""
    return int(fmix64(torch.tensor([salt], device="cpu")))


def fold(columns: Sequence[Tensor], key: int, modulo: int) -> Tensor:
    """[N] int64: h of the n-th id of each column, where `h = key; for x: h = fmix64(h ^ x)`.

    h is read as a signed number, and its remainder in [0, modulo) is taken; if modulo is 0, h
    itself is returned.
    """
    if columns[0].is_cpu:
        words = [column.contiguous().numpy().view(np.uint64) for column in columns]
        stacked = words[0][None] if len(words) == 1 else np.stack(words)
        out = np.empty(stacked.shape[1], np.int64)
        _fold(stacked, np.int64(key), np.int64(modulo), out)
        return torch.from_numpy(out)
    return fold_by_torch(columns, key, modulo)


def fold_by_torch(columns: Sequence[Tensor], key: int, modulo: int = 0) -> Tensor:
    """`fold` on any device."""
    mixed = fmix64(columns[0] ^ key)
    for column in columns[1:]:
        mixed = fmix64(mixed ^ column)
    return mixed.remainder_(modulo) if modulo else mixed


def fmix64(ids: Tensor) -> Tensor:
    """fmix64 of int64 ids, on any device."""
    for factor in FACTORS:
        ids = ((ids >> 33) & LOW ^ ids) * (factor - 2**64)  # products wrap as unsigned ones do
    return (ids >> 33) & LOW ^ ids


@kernel
def mix(h: np.uint64) -> np.uint64:
    """fmix64 of one word, for compiled loops."""
    h = (h ^ (h >> SHIFT)) * FIRST
    h = (h ^ (h >> SHIFT)) * SECOND
    return h ^ (h >> SHIFT)


@kernel
def _fold(columns: Words, key: np.int64, modulo: np.int64, out: npt.NDArray[np.int64]) -> None:
    for i in range(columns.shape[1]):
        h = np.uint64(key)
        for n in range(len(columns)):
            h = mix(h ^ columns[n, i])
        # As Python's: in [0, modulo).
        out[i] = np.int64(h) % modulo if modulo else np.int64(h)
