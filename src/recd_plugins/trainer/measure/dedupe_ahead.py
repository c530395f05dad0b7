"""Forecasts the dedupe factor of a run's batches: some are read ahead, until the factor is known.

m of M batches are read. Each has n ids, of which k are kept. The share of ids that is kept is
r = sum k / sum n, and the factor is 1 / r: a batch counts by its ids, and one without ids does not
count. With the rest e = k - r n of each batch, r is off by a share of about

    sqrt((1 - m / M) * m / (m - 1) * sum e^2) / sum k.

A slow reader reads only a few batches in time. If m is below 5, Student's t gives the number of
such deviations in an interval.

Batches that were not drawn but came first (M is infinite) say less of later ones: the interval is
then at least as wide as r already moved from their first half to their second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from recd_plugins.planning.access.sample import SpreadsBatches

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch

__all__ = ["DEVIATIONS", "FEW", "FIRST", "KeptIds", "read_ahead"]

FIRST = 32
"""Batches that are read before the first check whether more are needed; the first batches of a
trainer's own loader, from which the later ones are forecast."""
SURE = 0.02
"""More batches are read while the factor may be off by more than this share."""
SECONDS = 2.0
"""No more batches are read so long after the first: that one loads kernels and opens the table,
which may take long on a busy machine, and of one batch alone no interval is known."""
DEVIATIONS = 2.2
"""The deviations of an interval to either side: it holds in nine of ten cases, also for a few
uneven batches."""
FEW = {2: 6.31, 3: 2.92, 4: 2.35}
"""The deviations for so few batches: Student's t at 95%, with one degree of freedom less than
batches."""
LEAST = 0.005
"""A share by which any forecast may be off."""


class KeptIds(NamedTuple):
    """Sums over m batches, each with n ids of which k are kept; sums of several ranks add up."""

    batches: float = 0.0
    """m; the number of blocks if batches are read in blocks."""
    ids: float = 0.0
    kept: float = 0.0
    ids_squared: float = 0.0
    ids_kept: float = 0.0
    """The sum of n * k."""
    kept_squared: float = 0.0
    of: float = 0.0
    """M, the number from which the m were drawn; infinity if they came first."""
    early_ids: float = 0.0
    early_kept: float = 0.0
    """The sums of n and k over the first half of batches that came first."""

    @classmethod
    def each(cls, counts: Iterable[tuple[int, int]], of: float = 0.0) -> KeptIds:
        """The sums over the (n, k) of batches, which are in their order if they came first."""
        counts, sums = [*counts], [0.0] * 6
        for ids, kept in counts:
            terms = (1, ids, kept, ids * ids, ids * kept, kept * kept)
            sums = [one + term for one, term in zip(sums, terms, strict=True)]
        early = counts[: len(counts) // 2] if math.isinf(of) else []
        return cls(*sums)._replace(
            of=of,
            early_ids=float(sum(ids for ids, _ in early)),
            early_kept=float(sum(kept for _, kept in early)),
        )

    def plus(self, other: KeptIds) -> KeptIds:
        """The sums of both."""
        return KeptIds(*(mine + its for mine, its in zip(self, other, strict=True)))

    @property
    def factor(self) -> float | None:
        """The dedupe factor; None if there are no ids."""
        return self.ids / self.kept if self.kept else None

    def off(self, ranks: int = 1) -> float:
        """The share by which the factor may be off, if each of `ranks` ranks has as many
        batches."""
        if self.batches < 2 or not self.kept:
            return 0.0 if self.batches and self.batches >= self.of else math.inf
        r = self.kept / self.ids
        rest = self.kept_squared - 2 * r * self.ids_kept + r * r * self.ids_squared
        drawn = max(0.0, 1 - self.batches / self.of) * self.batches / (self.batches - 1)
        deviations = FEW.get(round(self.batches * ranks), DEVIATIONS)
        return max(self._moved, deviations * math.sqrt(drawn * max(rest, 0.0) / ranks) / self.kept)

    @property
    def _moved(self) -> float:
        """The share of r by which it moved between the halves of batches that came first."""
        late_ids = self.ids - self.early_ids
        if not self.early_ids or not late_ids:
            return 0.0
        moved = (self.kept - self.early_kept) / late_ids - self.early_kept / self.early_ids
        return abs(moved) * self.ids / self.kept

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval in which the factor will be; None if nothing is known about it."""
        factor, off = self.factor, math.hypot(self.off(), LEAST)
        if factor is None or off >= 1:
            return None
        return max(1.0, factor / (1 + off)), factor / (1 - off)


def read_ahead(loader: Iterable[Batch], steps: int | None, ranks: int) -> KeptIds:
    """The ids of some of this rank's batches, drawn from the first `steps` of the epoch, or from
    the whole epoch. If the steps go on after it, later epochs have other batches of the same
    samples.

    Only a loader that `SpreadsBatches` can be read ahead; the sums of any other are empty.
    """
    if not isinstance(loader, SpreadsBatches):
        return KeptIds()
    began: float | None = None
    places = loader.places
    length = len(loader)  # type: ignore[arg-type]
    first = None if steps is None or steps >= length else steps
    size = max(1, FIRST // max(1, places))
    of = (first or length) // min(size, first or length)
    every = max(of, (steps or 0) // size)
    blocks: dict[int, tuple[int, int]] = {}
    wanted, found = range(min(FIRST, places)), KeptIds(of=every)
    while wanted and found.off(ranks) > SURE:
        for block, batch in loader.spread(wanted, size, first):
            if hasattr(batch.dedup, "id_counts"):  # a converter's own type may have none
                counted, before = batch.dedup.id_counts(), blocks.get(block, (0, 0))
                blocks[block] = (before[0] + counted[0], before[1] + counted[1])
            if began is None:
                began = time.monotonic()
            elif time.monotonic() - began > SECONDS:
                return KeptIds.each(blocks.values(), every)
        found = KeptIds.each(blocks.values(), every)
        wanted = range(wanted.stop, min(2 * wanted.stop, places, of))
    return found
