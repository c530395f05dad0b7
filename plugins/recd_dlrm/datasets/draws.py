"""Keyed draws: a uniform number as a pure function of (seed, purpose, subject, counter).

The draws for one subject (a session, an id) depend on nothing else, so rows can be made in any
chunks, in any order, without a generator's state. The generator is SplitMix64 (Steele, Lea and
Flood, 2014), with one stream per subject.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recd_dlrm.datasets.flat_columns import F64, U64

__all__ = ["bits", "salt", "streams", "uniforms"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def salt(seed: int, purpose: str) -> np.uint64:
    """A salt that makes the draws for one purpose differ from all others of the same seed."""
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def streams(salt: np.uint64, subjects: NDArray[Any]) -> U64:
    """The stream of each subject, for `bits` and `uniforms`; integers [N] to [N]."""
    return _mix(subjects.astype(np.uint64) + salt)


def bits(streams: U64, counters: NDArray[Any]) -> U64:
    """The draw at each counter of each stream, 64 random bits; [N], [N] to [N]."""
    return _mix(counters.astype(np.uint64) * GOLDEN + streams)


def uniforms(streams: U64, counters: NDArray[Any]) -> F64:
    """`bits` as numbers in [0, 1) with 53 random bits."""
    numbers: F64 = (bits(streams, counters) >> np.uint64(11)) * np.float64(2.0**-53)
    return numbers


def _mix(x: U64) -> U64:
    """SplitMix64's finaliser, a bijection of 64 bits; overwrites `x`."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x
