"""The compiled loops that hash rows; see `checksum`."""

from __future__ import annotations

import numpy as np

from recd_dedup.hashing import I64, U64
from recd_plugins.api.rows import kernel

__all__ = ["add_lists", "add_values", "finish"]


@kernel
def _mix(x: np.uint64) -> np.uint64:
    """SplitMix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def add_lists(hashes: U64, offsets: I64, ids: U64, start: np.uint64) -> None:
    """Add a column of lists to the hashes [N]; offsets [N + 1]."""
    for row in range(hashes.size):
        x = start
        for i in range(offsets[row], offsets[row + 1]):
            x = (x ^ ids[i]) * np.uint64(0x9E3779B97F4A7C15)
            x ^= x >> np.uint64(32)
        # The length makes [0] differ from [], whatever the start.
        hashes[row] += _mix(x + np.uint64(offsets[row + 1] - offsets[row]))


@kernel
def add_values(hashes: U64, values: U64, start: np.uint64) -> None:
    """Add a column of numbers [N], as bits, to the hashes [N]."""
    for row in range(hashes.size):
        hashes[row] += _mix((start ^ np.uint64(values[row])) * np.uint64(0x9E3779B97F4A7C15))


@kernel
def finish(hashes: U64) -> None:
    """Mix each, so that columns cannot trade places between rows unseen."""
    for row in range(hashes.size):
        hashes[row] = _mix(hashes[row])
