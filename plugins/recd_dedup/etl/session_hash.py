"""Session ids as 64 evenly spread bits: which bucket a session is in, and which comes first.

The hash is SplitMix64's finaliser (Steele, Lea and Flood, 2014), a bijection: two sessions
never share one, so rows sorted by it are clustered by session. It is the same in every
process and version.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["I64", "MULTIPLIERS", "SHIFTS", "U64", "bucket_of", "salt", "session_hashes"]

I64: TypeAlias = NDArray[np.int64]
U64: TypeAlias = NDArray[np.uint64]

SHIFTS = (30, 27, 31)
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def session_hashes(ids: NDArray[Any], salt: int = 0) -> U64:
    """The hash of each id; any 64-bit integers [N] to [N]."""
    x: U64 = ids.astype(np.int64).view(np.uint64) + np.uint64(salt)
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
    """What makes the draws for one purpose and seed differ from all others."""
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
