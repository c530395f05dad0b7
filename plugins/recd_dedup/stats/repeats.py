"""Repeats within a session and within a batch, and features that change together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from recd_dedup.stats.session_rows import I64, Lists, SessionRows
from recd_plugins.api.rows import kernel

__all__ = [
    "BatchRepeats",
    "FeatureDedupe",
    "FeatureRepeats",
    "Histogram",
    "SessionRepeats",
    "agreement",
    "groups",
]

Also: TypeAlias = Callable[[str, Lists], None]


@dataclass
class Histogram:
    """An exact histogram of session sizes; its memory grows with the number of different sizes, not
    of sessions."""

    sessions: Counter[int] = field(default_factory=Counter)
    """How many sessions there are, by their number of samples."""

    def add(self, sizes: I64) -> None:
        """Add sessions, whose numbers of samples are `sizes` [R]."""
        found, counts = np.unique(sizes, return_counts=True)
        self.sessions.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    @property
    def num_sessions(self) -> int:
        return self.sessions.total()

    @property
    def num_samples(self) -> int:
        return sum(size * count for size, count in self.sessions.items())

    @property
    def mean(self) -> float:
        """S: samples per session."""
        return self.num_samples / max(1, self.num_sessions)

    @property
    def largest(self) -> int:
        return max(self.sessions, default=0)

    def values(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "max": self.largest,
            "sessions": self.num_sessions,
            "histogram": [list(pair) for pair in sorted(self.sessions.items())],
        }


@dataclass
class FeatureDedupe:
    """Counts of one feature, over all batches."""

    ids: int = 0
    unique_ids: int = 0
    """Ids of lists that differ from all earlier lists in their batch: these an IKJT keeps."""
    pairs: int = 0
    """Samples that follow another sample of their session, in the order of the batch."""
    unchanged: int = 0
    """Those of these samples whose list equals that of the sample before."""


class BatchRepeats:
    """Counts repeats in batches of a table, whose rows may be in any order."""

    def __init__(self, features: Sequence[str]) -> None:
        self.features = {name: FeatureDedupe() for name in features}
        self.sizes = Histogram()
        """Samples of a session within a batch."""
        self.batches = 0
        self.rows = 0

    def add(self, rows: SessionRows, also: Also = lambda name, lists: None) -> None:
        """Count the rows of a batch, or of several; `also` gets the lists of each feature, so that
        these are compared once."""
        order, follows = rows.order, rows.follows
        self.sizes.add(np.diff(1 + np.flatnonzero(~follows), prepend=0, append=len(rows)))
        self.batches += 1 if rows.batches is None else int(rows.batches[-1]) + 1
        self.rows += len(rows)
        pairs = int(follows.sum())
        for name, lists in rows.features():
            counts, codes = self.features[name], lists.codes[order]
            counts.ids += len(lists.values)
            counts.unique_ids += int(lists.lengths[lists.firsts].sum())
            counts.pairs += pairs
            counts.unchanged += int((follows & (codes[1:] == codes[:-1])).sum())
            also(name, lists)

    def dedupe(self, name: str) -> dict[str, Any]:
        """DedupeLen and DedupeFactor of the mean batch, by the formula and as measured."""
        counts = self.features[name]
        size = self.sizes.mean
        stay = counts.unchanged / max(1, counts.pairs)
        length = counts.ids / max(1, self.batches)  # l(f) * B
        formula = length * (1 - (size - 1) / max(size, 1) * stay)
        measured = counts.unique_ids / max(1, self.batches)
        return {
            "length": length,
            "dedupe_len": {"formula": formula, "measured": measured},
            "dedupe_factor": {
                "formula": length / formula if formula else 1.0,
                "measured": length / measured if measured else 1.0,
            },
        }


MIX = np.uint64(0xFF51AFD7ED558CCD)
STEP = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)


@dataclass
class FeatureRepeats:
    """Counts of one feature, over all sessions."""

    rows: int = 0
    ids: int = 0
    exact_rows: int = 0
    """Samples whose list an earlier sample of the session also has; an empty list counts."""
    exact_ids: int = 0
    """The ids of these samples."""
    partial_ids: int = 0
    """Ids that an earlier sample of the session also has, in any place."""
    pairs: int = 0
    """Samples that follow another sample of their session."""
    unchanged: int = 0
    """Those of these samples whose list equals that of the sample before."""

    @property
    def length(self) -> float:
        """l(f): the mean number of ids in a list."""
        return self.ids / max(1, self.rows)

    @property
    def stay(self) -> float:
        """d(f): the share of lists that are unchanged from one sample of a session to the next."""
        return self.unchanged / max(1, self.pairs)

    @property
    def exact(self) -> float:
        """The share of samples that are exact duplicates."""
        return self.exact_rows / max(1, self.rows)

    @property
    def partial(self) -> float:
        """The share of ids that are duplicates, including those of exact duplicates."""
        return self.partial_ids / max(1, self.ids)


class SessionRepeats:
    """Counts repeats in the blocks of a clustered table, which must come in order."""

    def __init__(self, features: Sequence[str]) -> None:
        self.features = {name: FeatureRepeats() for name in features}
        self.sizes = Histogram()
        self.changes = np.zeros((len(features), len(features)), np.int64)
        """[F, F] how often both features change from one sample to the next."""
        self._open: tuple[int, int] | None = None

    def add(self, block: SessionRows) -> None:
        """Count a block; the last session stays open until `close`, because it may go on."""
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
        """Add a block's counts; returns which lists changed, for rows that follow in a session."""
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


@kernel
def _first_seen(sessions: I64, codes: I64) -> NDArray[np.bool_]:
    """[N] whether a row's code is new in its session."""
    fresh = np.empty(len(codes), np.bool_)
    last = np.full(codes.max() + 1 if len(codes) else 0, -1, np.int64)  # session that had it
    for row in range(len(codes)):
        fresh[row] = last[codes[row]] != sessions[row]
        last[codes[row]] = sessions[row]
    return fresh


@kernel
def _new_ids(sessions: I64, values: I64, offsets: I64, fresh: NDArray[np.bool_]) -> int:
    """The number of ids that no earlier row of their session holds, counted with an open hash table
    of (session, id)."""
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


def agreement(changes: I64) -> NDArray[np.float64]:
    """[F, F] the share of samples in which both features change, among those in which either does.

    `changes` [F, F] counts the samples in which both change. Features that never change agree.
    """
    alone = np.diag(changes)
    either = alone[:, None] + alone[None, :] - changes
    shares: NDArray[np.float64] = np.where(either > 0, changes / np.maximum(either, 1), 1.0)
    return shares


def groups(
    features: Sequence[str], shares: NDArray[np.float64], least: float
) -> list[tuple[str, ...]]:
    """Groups of features in which every two agree by at least `least`; each feature joins the first
    group that it can."""
    found: list[list[int]] = []
    for index in range(len(features)):
        for group in found:
            if (shares[index, group] >= least).all():
                group.append(index)
                break
        else:
            found.append([index])
    return [tuple(features[index] for index in group) for group in found]
