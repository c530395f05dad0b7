"""Exact counts: from the batches of a rank to an access distribution."""

from __future__ import annotations

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.planning.rows import Floats, Integers, RowDistribution

__all__ = ["RowCounter"]


class RowCounter:
    """Counts the lookups of each row, and the batches that hold it; 12 bytes a row.

    The batches say what formulas cannot: how far a row's lookups come together, in one history
    or in the samples of one session. `distribution` turns them into `presence`.
    """

    def __init__(self, num_rows: int) -> None:
        self.samples = 0
        self._batches = 0
        self._lookups = np.zeros(num_rows, np.int64)
        self._holding = np.zeros(num_rows, np.int32)

    def add(self, ids: Integers, samples: int) -> None:
        """The lookups of a batch of `samples` samples, in any order; batches of one size."""
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < len(self._lookups):
            wrong = int(ids.min() if ids.min() < 0 else ids.max())
            raise DataError(
                f"rows: id {wrong} is not in [0, {len(self._lookups)}): a transform yields ids "
                "that its schema does not allow, or the table is too small."
            )
        rows, lookups = np.unique(ids, return_counts=True)
        self._lookups[rows] += lookups
        self._holding[rows] += 1
        self._batches += 1
        self.samples += samples

    def distribution(self, *, sample: bool = False) -> RowDistribution:
        """p = lookups / samples; presence q such that 1 - (1 - q)^B is the share of batches of
        B samples that hold a row, over all rows with as many lookups. Ids: of all that occur.

        Where what was counted is a `sample` of what will come, rows not seen yet will come too:
        each row seen gives d = n1 / (n1 + 2 n2) of a lookup to them (Ney's absolute
        discounting; n1, n2 rows were looked up once, twice).
        """
        if not self.samples:
            raise DataError("rows: nothing was counted: there are no samples.")
        seen = np.flatnonzero(self._lookups)
        ids = seen[np.argsort(-self._lookups[seen], kind="stable")]
        lookups = self._lookups[ids]
        starts = np.flatnonzero(np.diff(lookups, prepend=-1))
        counts, each = np.diff(starts, append=len(ids)), lookups[starts].astype(np.float64)
        held = np.zeros(0)
        if len(ids):
            held = np.add.reduceat(self._holding[ids], starts, dtype=np.int64) / counts
        # Seen in every batch: count half a batch as without it, or presence would be 1.
        share = np.minimum(held, self._batches - 0.5) / self._batches
        presence = -np.expm1(np.log1p(-share) * self._batches / self.samples)
        always = np.where(held == self._batches, np.minimum(each / self.samples, 1.0), 0.0)
        presence = np.maximum(presence, always)
        unseen, given = len(self._lookups) - len(ids), 0.0
        if sample and unseen:
            given = _discount(counts, each, unseen)
            presence *= 1 - given / each
        if unseen:
            each = each - given
            # At most as much as each that was seen, after rounding too: then they come last.
            rest = min(given * len(ids) / unseen, each[-1] if len(each) else 0.0)
            counts, each = np.append(counts, unseen), np.append(each, rest)
            presence = np.append(presence, rest / self.samples)
        return RowDistribution.of(counts, each / self.samples, presence.clip(max=1.0), ids=ids)


def _discount(counts: Integers, lookups: Floats, unseen: int) -> float:
    """What each row that was seen gives of its lookups to those that were not."""
    once, twice = (int(counts[lookups == times].sum()) for times in (1, 2))
    if not once:
        return 0.0
    # No row that was not seen gets more than one that was.
    return min(once / (once + 2 * twice), unseen / (unseen + int(counts.sum())))
