"""Ids as 64 evenly spread bits: which shard or bucket a session is in, and which comes first.

The hash is SplitMix64's finaliser (Steele, Lea and Flood, 2014), a bijection: two sessions
never share one, so rows sorted by it are clustered by session. Log shards on disk rest on
it, so it is the same in every process, on every machine and for good; tests hold it to known
values.
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
    """The hash of each id; any 64-bit integers [N] to [N]."""
    x: U64 = ids.astype(np.uint64) + np.uint64(salt)
    for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=False):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(multiplier)
    x ^= x >> np.uint64(SHIFTS[-1])
    return x


def bucket_of(hashes: U64, n_buckets: int) -> I64:
    """Bucket i holds the i-th of `n_buckets` equal ranges of hashes; [N] to [N]."""
    high = hashes >> np.uint64(32)
    return ((high * np.uint64(n_buckets)) >> np.uint64(32)).view(np.int64)


def salt(seed: int, purpose: str) -> int:
    """A salt that makes the draws for one purpose and seed differ from all others."""
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniforms(seed: int, purpose: str, ids: NDArray[Any]) -> F64:
    """A number in [0, 1) for each id, which depends on seed, purpose and id alone; [N] to [N]."""
    hashes = mix(mix(ids), salt(seed, purpose))
    numbers: F64 = (hashes >> np.uint64(11)) * np.float64(2.0**-53)
    return numbers
