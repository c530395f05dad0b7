"""What repeats within a session: lists, ids, and from one sample to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from recd_dedup.stats.histogram import Histogram
from recd_dedup.stats.rows import I64, Lists, Rows

__all__ = ["FeatureRepeats", "SessionRepeats"]

MIX = np.uint64(0xFF51AFD7ED558CCD)
STEP = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)


@dataclass
class FeatureRepeats:
    """Counts of one feature, over all sessions."""

    rows: int = 0
    ids: int = 0
    exact_rows: int = 0
    """Samples whose list an earlier sample of the session has too; an empty list is a list."""
    exact_ids: int = 0
    """Their ids."""
    partial_ids: int = 0
    """Ids that an earlier sample of the session has too, in any place."""
    pairs: int = 0
    """Samples that follow one of their session."""
    unchanged: int = 0
    """Of these, those whose list is that of the sample before."""

    @property
    def length(self) -> float:
        """l(f): the mean list's ids."""
        return self.ids / max(1, self.rows)

    @property
    def stay(self) -> float:
        """d(f): the share of unchanged lists from sample to next sample of a session."""
        return self.unchanged / max(1, self.pairs)

    @property
    def exact(self) -> float:
        """The share of samples that are exact duplicates."""
        return self.exact_rows / max(1, self.rows)

    @property
    def partial(self) -> float:
        """The share of ids that are duplicates, those of exact ones included."""
        return self.partial_ids / max(1, self.ids)


class SessionRepeats:
    """Counts a clustered table's blocks, in order."""

    def __init__(self, features: Sequence[str]) -> None:
        self.features = {name: FeatureRepeats() for name in features}
        self.sizes = Histogram()
        self.changes = np.zeros((len(features), len(features)), np.int64)
        """[F, F] how often both features change from one sample to the next."""
        self._open: tuple[int, int] | None = None

    def add(self, block: Rows) -> None:
        """Count a block; the last session stays open until `close`, for it may go on."""
        starts = block.starts
        sizes = np.diff(starts, append=len(block))
        self._count(block.sessions[starts], sizes)
        follows = np.ones(len(block), np.bool_)
        follows[starts] = False
        sessions = np.repeat(np.arange(len(starts)), sizes)
        changed = []
        for name, lists in block.features():
            changed.append(self._repeats(self.features[name], lists, sessions, follows))
        # float32 counts exactly up to 2^24, far more than the rows of a block.
        both = np.array(changed, np.float32).reshape(len(changed), -1)
        self.changes += np.rint(both @ both.T).astype(np.int64)

    def close(self) -> None:
        if self._open is not None:
            self.sizes.add(np.array([self._open[1]]))
            self._open = None

    def _count(self, ids: NDArray[Any], sizes: I64) -> None:
        sizes = sizes.copy()
        if self._open is not None and self._open[0] == ids[0]:
            sizes[0] += self._open[1]
        else:
            self.close()
        self.sizes.add(sizes[:-1])
        self._open = (int(ids[-1]), int(sizes[-1]))

    def _repeats(
        self, counts: FeatureRepeats, lists: Lists, sessions: I64, follows: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Add a block's counts; what comes back is which of the rows that follow changed."""
        fresh = _first_seen(sessions, lists.codes)
        changed: NDArray[np.bool_] = (np.diff(lists.codes, prepend=-1) != 0)[follows]
        counts.rows += len(sessions)
        counts.ids += len(lists.values)
        counts.exact_rows += int((~fresh).sum())
        counts.exact_ids += int(lists.lengths[~fresh].sum())
        new_ids = _new_ids(sessions, lists.values, lists.offsets, fresh)
        counts.partial_ids += len(lists.values) - int(new_ids)
        counts.pairs += len(changed)
        counts.unchanged += len(changed) - int(changed.sum())
        return changed


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _first_seen(sessions: I64, codes: I64) -> NDArray[np.bool_]:
    """[N] whether a row's code is new in its session."""
    fresh = np.empty(len(codes), np.bool_)
    last = np.full(codes.max() + 1 if len(codes) else 0, -1, np.int64)  # session that had it
    for row in range(len(codes)):
        fresh[row] = last[codes[row]] != sessions[row]
        last[codes[row]] = sessions[row]
    return fresh


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _new_ids(sessions: I64, values: I64, offsets: I64, fresh: NDArray[np.bool_]) -> int:
    """How many ids no earlier row of their session holds; an open hash table of (session, id)."""
    total = 0
    for row in range(len(sessions)):
        if fresh[row]:
            total += offsets[row + 1] - offsets[row]
    size = 2
    while size < 2 * total:
        size *= 2
    mask = np.uint64(size - 1)
    holder = np.full(size, -1, np.int64)  # the first row that holds the slot's id
    ids = np.empty(size, np.int64)
    new = 0
    for row in range(len(sessions)):
        if not fresh[row]:
            continue
        for at in range(offsets[row], offsets[row + 1]):
            key = (np.uint64(values[at]) ^ (np.uint64(sessions[row]) * STEP)) * MIX
            slot = (key ^ (key >> HALF)) & mask
            while holder[slot] >= 0 and (
                ids[slot] != values[at] or sessions[holder[slot]] != sessions[row]
            ):
                slot = (slot + np.uint64(1)) & mask
            if holder[slot] < 0:
                holder[slot], ids[slot] = row, values[at]
            if holder[slot] == row:
                new += 1
    return new
