"""What repeats within a batch: how many sessions it has, how many ids its unique samples keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recd_dedup.stats.histogram import Histogram
from recd_dedup.stats.rows import Rows

__all__ = ["BatchRepeats", "FeatureDedupe"]


@dataclass
class FeatureDedupe:
    """Counts of one feature, over all batches."""

    ids: int = 0
    unique_ids: int = 0
    """Ids of the lists that differ from all before them in their batch: what an IKJT keeps."""
    pairs: int = 0
    """Samples that follow one of their session, in the order of the batch."""
    unchanged: int = 0
    """Of these, those whose list is that of the sample before."""


class BatchRepeats:
    """Counts batches of a table, in any order of its rows."""

    def __init__(self, features: Sequence[str]) -> None:
        self.features = {name: FeatureDedupe() for name in features}
        self.sizes = Histogram()
        """Samples of a session within a batch."""
        self.batches = 0
        self.rows = 0

    def add(self, batch: Rows) -> None:
        order = batch.sessions.argsort(kind="stable")
        sessions = batch.sessions[order]
        starts = 1 + np.flatnonzero(sessions[1:] != sessions[:-1])
        self.sizes.add(np.diff(starts, prepend=0, append=len(batch)))
        self.batches += 1
        self.rows += len(batch)
        follows = sessions[1:] == sessions[:-1]
        for name, lists in batch.features():
            counts, codes = self.features[name], lists.codes[order]
            counts.ids += len(lists.values)
            counts.unique_ids += int(lists.lengths[lists.firsts].sum())
            counts.pairs += int(follows.sum())
            counts.unchanged += int((follows & (codes[1:] == codes[:-1])).sum())

    def dedupe(self, name: str) -> dict[str, Any]:
        """DedupeLen and DedupeFactor of a mean batch, by the formula and measured."""
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
