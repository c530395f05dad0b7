"""Bags whose rows are all hot: a sample of the bags that were looked up, and the coldest row of
each."""

from __future__ import annotations

import numpy as np

from recd_plugins.planning.access.distribution import Floats, Integers
from recd_plugins.planning.access.row_counter import RowCounter

__all__ = ["SampledBags"]

OF_A_BATCH = 64
"""The most bags of a feature that are kept from a batch, and the most ids of these."""
IDS_OF_A_BATCH = 1 << 12
MOST = 1 << 14
"""The most bags of a table: beyond that, every second one is kept, also of those to come."""


class SampledBags:
    """Some bags of a table, each with the fold that it was counted in; mergeable."""

    def __init__(self) -> None:
        self._ids: list[Integers] = []
        self._lengths: list[Integers] = []
        self._folds: list[Integers] = []
        self._bags = 0
        self._every = 1

    def add(self, ids: Integers, lengths: Integers, num_rows: int, fold: int) -> None:
        """Keep some of a feature's bags in a batch: `ids` are one bag after another, `lengths`
        [B]."""
        if not len(lengths):
            return
        step = max(1, -(-len(lengths) // OF_A_BATCH), -(-len(ids) // IDS_OF_A_BATCH)) * self._every
        kept, long = ids, lengths
        if step > 1:
            kept, long = _taken(ids, lengths, np.arange(0, len(lengths), step))
        row = (kept >= 0) & (kept < num_rows)
        if not row.all():  # ids that are not rows are not counted
            long = np.bincount(np.repeat(np.arange(len(long)), long)[row], minlength=len(long))
            kept = kept[row]
        self.merge(kept, long, np.full(len(long), fold))

    def state(self) -> tuple[Integers, Integers, Integers]:
        """Ids, bag after bag, and the length and the fold of each bag, for `merge` of another
        sample."""
        if not self._ids:
            none = np.empty(0, np.int64)
            return none, none, none
        return np.concatenate(self._ids), np.concatenate(self._lengths), np.concatenate(self._folds)

    def merge(self, ids: Integers, lengths: Integers, folds: Integers) -> None:
        """Add the bags of another sample of the same table."""
        self._ids.append(ids.astype(np.int64))
        self._lengths.append(lengths.astype(np.int64))
        self._folds.append(folds.astype(np.int64))
        self._bags += len(lengths)
        if self._bags > MOST:
            ids, lengths, folds = self.state()
            chosen = np.arange(0, len(lengths), 2)
            kept, long = _taken(ids, lengths, chosen)
            self._ids, self._lengths, self._folds = [kept], [long], [folds[chosen]]
            self._bags = len(chosen)
            self._every *= 2

    def whole(self, counter: RowCounter, counted_share: float = 0.0) -> Floats | None:
        """[R + 1] the share of bags whose rows are all hotter than band r of the counter's
        distribution; None if it is unknown: without bags, or with a single fold.

        The rows of a bag are ranked by the counts of the other folds: its own lookups would make
        its rows hotter than they will be in bags to come, except for `counted_share` of those.
        """
        ids, lengths, folds = self.state()
        if not len(lengths) or counter.folds < 2:
            return None
        every, own = counter.lookups_of(ids, np.repeat(folds, lengths))
        starts, ends = np.cumsum(lengths) - lengths, lengths > 0
        found = []
        for counted, share in ((every, counted_share), (own, 1 - counted_share)):
            if not share:
                continue
            coldest = np.full(len(lengths), -1)
            if len(ids):
                bands = counter.bands_of(counted)
                coldest[ends] = np.maximum.reduceat(bands, starts[ends])
            shares = np.bincount(coldest + 1, minlength=counter.bands + 1) / len(lengths)
            found.append(share * np.cumsum(shares))
        whole: Floats = np.minimum(np.sum(found, axis=0), 1.0)
        return whole


def _taken(ids: Integers, lengths: Integers, bags: Integers) -> tuple[Integers, Integers]:
    """The ids of some bags, and their lengths."""
    kept = np.zeros(len(lengths), np.bool_)
    kept[bags] = True
    return ids[np.repeat(kept, lengths)], lengths[bags]
