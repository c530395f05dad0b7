"""Which samples of a batch are equal, by the numbers of their rows in a window's pool."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.rows.unique import HALF, MIX, NEXT

__all__ = ["UniqueSamples", "unique_samples"]

I64: TypeAlias = npt.NDArray[np.int64]
I32: TypeAlias = npt.NDArray[np.int32]
Numbers: TypeAlias = npt.NDArray[Any]
"""Numbers of rows: int32, or int64 if there may be too many rows for that."""


class UniqueSamples(NamedTuple):
    """The different samples among S, in each of G feature groups."""

    inverse_lookup: I64
    """[G, S] which of the group's unique samples each sample is."""
    counts: I64
    """[G] the number of unique samples of each group."""
    rows: Numbers
    """[K, max(counts)] the rows of the unique samples, in order of first appearance, for each
    feature, group after group; then row 0."""


def unique_samples(rows: Numbers, groups: Sequence[Sequence[int]]) -> UniqueSamples:
    """The unique samples of each group: samples are equal if their rows agree in all its features.

    `rows` [K, S] are those of `Picked`; a group lists the indices of its features among the K.
    """
    features, bounds = _members(tuple(map(tuple, groups)))
    inverse_lookup = np.empty((len(groups), rows.shape[1]), np.int64)
    firsts = np.empty_like(inverse_lookup)
    counts = _unique_samples(rows, features, bounds, inverse_lookup, firsts)
    picked = np.zeros((len(features), counts.max()), rows.dtype)
    _pick(rows, features, bounds, firsts, counts, picked)
    return UniqueSamples(inverse_lookup, counts, picked)


@lru_cache(maxsize=64)
def _members(groups: tuple[tuple[int, ...], ...]) -> tuple[I64, I64]:
    """The features of all groups, and where each group begins among them: all batches have the same
    groups."""
    features = np.array([feature for group in groups for feature in group])
    return features, np.cumsum([0, *map(len, groups)])


@kernel
def _unique_samples(
    rows: Numbers, features: I64, bounds: I64, inverse_lookup: I64, firsts: I64
) -> I64:
    """[G] the counts; `firsts` [G, S] become the samples where each unique one appears first."""
    num_groups, num_samples = inverse_lookup.shape
    size = 2
    while size < 2 * num_samples:
        size *= 2
    slots = np.empty(size, np.int32)
    counts = np.zeros(num_groups, np.int64)
    for group in range(num_groups):
        slots[:] = -1
        members = features[bounds[group] : bounds[group + 1]]
        lookup, first = inverse_lookup[group], firsts[group]
        if len(members) == 1:  # two loops: of 33 groups, 28 have one, and all take 0.7 of the time
            counts[group] = _unique_of_one(rows[members[0]], slots, lookup, first)
        else:
            counts[group] = _unique_of_several(rows, members, slots, lookup, first)
    return counts


# In a clustered table, equal samples lie side by side: one look at the sample before saves the
# hash. Indices are unsigned, so the compiler need not check whether they count from the end.


@kernel
def _unique_of_one(rows: Numbers, slots: I32, lookup: I64, firsts: I64) -> np.int64:
    """The number of different rows among the [S] of one feature."""
    mask = np.uint64(len(slots) - 1)
    count = known = np.int64(0)
    for sample in range(np.uintp(len(lookup))):
        row = rows[sample]
        if sample == np.uintp(0) or row != rows[sample - NEXT]:
            mixed = np.uint64(row) * MIX
            slot = (mixed ^ (mixed >> HALF)) & mask
            while True:
                known = np.int64(slots[slot])
                if known < 0:
                    known = count
                    slots[slot] = known
                    firsts[np.uintp(known)] = sample
                    count += 1
                    break
                if rows[np.uintp(firsts[np.uintp(known)])] == row:
                    break
                slot = (slot + np.uint64(1)) & mask
        lookup[sample] = known
    return count


@kernel
def _unique_of_several(
    rows: Numbers, members: I64, slots: I32, lookup: I64, firsts: I64
) -> np.int64:
    """The number of different samples [S], by the rows of several features."""
    mask = np.uint64(len(slots) - 1)
    count = known = np.int64(0)
    for sample in range(np.uintp(len(lookup))):
        if sample == np.uintp(0) or not _agree(rows, members, sample, sample - NEXT):
            mixed = np.uint64(0)
            for feature in members:
                mixed = (mixed ^ np.uint64(rows[feature, sample])) * MIX
                mixed ^= mixed >> HALF
            slot = mixed & mask
            while True:
                known = np.int64(slots[slot])
                if known < 0:
                    known = count
                    slots[slot] = known
                    firsts[np.uintp(known)] = sample
                    count += 1
                    break
                if _agree(rows, members, sample, np.uintp(firsts[np.uintp(known)])):
                    break
                slot = (slot + np.uint64(1)) & mask
        lookup[sample] = known
    return count


@kernel
def _agree(rows: Numbers, features: I64, left: np.uintp, right: np.uintp) -> bool:
    alike = 0
    while alike < len(features) and rows[features[alike], left] == rows[features[alike], right]:
        alike += 1
    return alike == len(features)


@kernel
def _pick(
    rows: Numbers, features: I64, bounds: I64, firsts: I64, counts: I64, picked: Numbers
) -> None:
    for group in range(len(counts)):
        for k in range(bounds[group], bounds[group + 1]):
            of_feature, into = rows[features[k]], picked[k]
            for i in range(np.uintp(counts[group])):
                into[i] = of_feature[np.uintp(firsts[group, i])]
