"""Hashes of ids as 64 evenly spread bits: they decide the shard, bucket and order of sessions.

The hash is SplitMix64's finaliser (Steele, Lea and Flood, 2014). It is a bijection: two sessions
never share a hash, so rows sorted by it are clustered by session. Log shards on disk depend on it,
so it is the same in every process, on every machine, forever; tests compare it with known values.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["F64", "I64", "MULTIPLIERS", "SHIFTS", "U64", "bucket_of", "mix", "salt", "uniforms"]

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
U64: TypeAlias = NDArray[np.uint64]

SHIFTS = (30, 27, 31)
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix(ids: NDArray[Any], salt: int = 0) -> U64:
    """[N] the hash of each id; ids are any 64-bit integers [N]."""
    x: U64 = ids.astype(np.uint64) + np.uint64(salt)
    for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=False):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(multiplier)
    x ^= x >> np.uint64(SHIFTS[-1])
    return x


def bucket_of(hashes: U64, n_buckets: int) -> I64:
    """[N] the bucket of each hash; bucket i has the i-th of `n_buckets` equal ranges of hashes."""
    high = hashes >> np.uint64(32)
    return ((high * np.uint64(n_buckets)) >> np.uint64(32)).view(np.int64)


def salt(seed: int, purpose: str) -> int:
    """A salt, so that the draws for one purpose and seed differ from all others."""
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniforms(seed: int, purpose: str, ids: NDArray[Any]) -> F64:
    """[N] a number in [0, 1) for each id, which depends only on seed, purpose and id."""
    hashes = mix(mix(ids), salt(seed, purpose))
    numbers: F64 = (hashes >> np.uint64(11)) * np.float64(2.0**-53)
    return numbers
