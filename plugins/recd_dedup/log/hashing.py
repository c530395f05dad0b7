"""Ids as 64 evenly spread bits: the same in every process, on every machine, for good.

Log shards on disk rest on this hash, so it never changes; tests hold it to known values.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["F64", "I64", "U64", "mix", "salt", "uniforms"]

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
U64: TypeAlias = NDArray[np.uint64]


def mix(ids: NDArray[Any]) -> U64:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014); 64-bit integers [N] to [N].

    A bijection: ids that differ have hashes that differ.
    """
    x: U64 = ids.astype(np.uint64)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def salt(seed: int, purpose: str) -> np.uint64:
    """What sets the draws for one purpose and seed apart from all others."""
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def uniforms(seed: int, purpose: str, ids: NDArray[Any]) -> F64:
    """A number in [0, 1) for each id, which depends on seed, purpose and id alone; [N] to [N]."""
    hashes = mix(mix(ids) + salt(seed, purpose))
    numbers: F64 = (hashes >> np.uint64(11)) * np.float64(2.0**-53)
    return numbers
