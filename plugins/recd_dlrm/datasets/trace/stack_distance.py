"""Traces by their LRU stack distances (DLRM, 4.2): profile one, and generate others like it.

The stack distance of an access is its id's position from the top of an LRU stack: 1 for an id that
was accessed just before, and 0 for a new id. An LRU cache of C rows hits exactly the accesses of
distance 1 to C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike

from recd_dlrm.datasets.flat_columns import F64, I64
from recd_plugins.api import DataError
from recd_plugins.api.data import whole_file

__all__ = ["StackProfile", "SyntheticTrace", "adjusted_floor", "profile"]


@dataclass(frozen=True, eq=False)
class StackProfile:
    """What Algorithm 1 keeps of a trace: enough to generate another one, but not to restore its
    order."""

    unique: I64
    """The ids [U], in the order of their first access: the paper's u."""
    distances: I64
    """The distances that occur [K], ascending; the first is 0."""
    probabilities: F64
    """The share of accesses with each distance [K]: the paper's p."""

    def __post_init__(self) -> None:
        u, d, p = self.unique, self.distances, self.probabilities
        broken = {
            "there is no id": not len(u),
            "an id is named twice": len(np.unique(u)) < len(u),
            "distances and probabilities differ in number": len(d) != len(p),
            "the distances do not ascend from 0": not len(d) or d[0] != 0 or np.any(np.diff(d) < 1),
            "a distance exceeds the number of ids": np.any(d > len(u)),
            "the probabilities are not above 0 with sum 1": np.any(p <= 0)
            or not np.isclose(p.sum(), 1),
        }
        for fault, holds in broken.items():
            if holds:
                raise DataError(f"not the profile of any trace: {fault}. Profile the trace again.")

    @property
    def num_ids(self) -> int:
        """The number of rows of a table for these ids."""
        return int(self.unique.max()) + 1

    def renumbered(self) -> StackProfile:
        """The same locality over ids 0, 1, ... in the order of first access: no id of the source is
        left."""
        return StackProfile(np.arange(len(self.unique)), self.distances, self.probabilities)

    def save(self, path: Path) -> None:
        """Write the profile as a Parquet file of one row."""
        columns = {
            "unique": self.unique,
            "distances": self.distances,
            "probabilities": self.probabilities,
        }
        with whole_file(path) as part:
            pq.write_table(pa.table({name: [values] for name, values in columns.items()}), part)

    @classmethod
    def load(cls, path: Path) -> StackProfile:
        try:
            row = pq.read_table(path, columns=["unique", "distances", "probabilities"])
            unique, distances, probabilities = (
                column.combine_chunks().flatten().to_numpy() for column in row.columns
            )
            return cls(unique, distances, probabilities)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(
                f"{path}: cannot be read as the profile of a trace ({error}). "
                "`profile(trace).save(path)` writes one."
            ) from error


def profile(trace: ArrayLike) -> StackProfile:
    """Algorithm 1: the unique accesses and the stack-distance distribution of ids [N]."""
    from recd_dlrm.datasets.trace.lru_stack import stack_distances

    ids = np.asarray(trace, dtype=np.int64)
    if not len(ids):
        raise DataError("an empty trace has no stack distances. Give it at least one access.")
    # Arrow numbers the ids in the order of their first access.
    encoded = pa.array(ids).dictionary_encode()
    unique = encoded.dictionary.to_numpy()
    found = stack_distances(encoded.indices.to_numpy().astype(np.int64), len(unique))
    distances, counts = np.unique(found, return_counts=True)
    return StackProfile(unique, distances, counts / len(ids))


def adjusted_floor(profile: StackProfile, length: int) -> float:
    """The floor with which all ids are seen within the first 2% of a trace.

    An access is new with at least the floor's probability, so U ids take U / floor accesses on
    average, or fewer.
    """
    return min(1.0, len(profile.unique) / max(1.0, 0.02 * length))


class SyntheticTrace:
    """Algorithm 2 in parts, which together equal the trace made at once.

    Without `floor` it is the algorithm as printed, where a distance of 0 never leaves the support:
    once all ids have been seen, it takes the least recent one. With `floor` it is the adjusted
    version: p[0] is raised to at least `floor` until all ids have been seen, and then 0 leaves the
    support. (If no id ever repeats, 0 is the only distance, and stays.)
    """

    def __init__(
        self, profile: StackProfile, seed: int | Sequence[int], floor: float | None
    ) -> None:
        from recd_dlrm.datasets.trace.lru_stack import full_stack

        p = profile.probabilities
        first, rest = p[0], p[1:]
        self._profile = profile
        self._until_seen = self._once_seen = np.cumsum(p)
        if floor is not None and len(rest):
            raised = max(first, floor)
            scaled = rest * ((1 - raised) / (1 - first))
            self._until_seen = np.cumsum(np.concatenate(([raised], scaled)))
            self._once_seen = np.cumsum(np.concatenate(([0.0], rest)))
        self._rng = np.random.default_rng(seed)
        self._stack = full_stack(len(profile.unique))
        self._free, self._seen = len(profile.unique), 0

    def take(self, accesses: int) -> I64:
        """The next ids [accesses]."""
        from recd_dlrm.datasets.trace.lru_stack import draw_accesses

        drawn, self._free, self._seen = draw_accesses(
            self._stack,
            self._free,
            self._seen,
            self._rng.random(accesses),
            self._profile.distances,
            self._until_seen,
            self._once_seen,
        )
        ids: I64 = self._profile.unique[drawn]
        return ids
