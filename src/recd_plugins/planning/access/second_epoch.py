"""Whether a loader that was counted to its end has the same ids in its next epoch.

What was counted is then what comes again. But a loader may draw ids anew in each epoch, as
negatives or walks on a graph; its counts are one epoch's luck, and later epochs have to be forecast
as if nothing of them had been seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from recd_plugins.planning.access.access_profile import Tally
from recd_plugins.planning.access.batches_of_ranks import gathered
from recd_plugins.planning.access.forecast import FOLDS
from recd_plugins.planning.access.row_counter import RowCounter
from recd_plugins.planning.together import together

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["HasNextEpoch", "see_next_epoch"]

PART = 4
"""How many of an epoch's `FOLDS` are read of the next one: its first batches."""
MATTERS = 0.02
"""By how much the share of some rows must depend on whether ids come again, or nobody needs to
know."""
ALIKE = 0.9
"""From this share on, all comes again: a loader that shuffles may leave out another rest of its
samples in each epoch."""
POINTS = 64


@runtime_checkable
class HasNextEpoch(Protocol):
    """Batches that can be read on into the next epoch."""

    def next_epoch(self) -> Iterable[Any]:
        """Its batches; none if the epoch is not over, or there is no other."""

    def __len__(self) -> int: ...


def see_next_epoch(
    whole: Tally,
    batches: Iterable[Any],
    features: FeaturesOf | None,
    group: ProcessGroup | None,
) -> None:
    """Where all of an epoch was counted in `whole`, read the first batches of the next one, and set
    `whole.comes_again`. Every rank of the group calls this; rank 0 has the counts of all."""

    def asked() -> int:  # by rank 0, which has the counts of all ranks
        return int(whole.counted_share == 1 and (group is None or group.rank() == 0))

    part = Tally(counted=whole.counted)

    def count() -> int:
        if isinstance(batches, HasNextEpoch):
            with suppress(Exception):  # of a loader for one epoch alone, no other is known
                few = -(-PART * len(batches) // FOLDS)
                for batch in islice(batches.next_epoch(), few):
                    part.count(batch, 0, features)
        return part.samples

    if group is None:
        if not asked() or not count():
            return
    elif not together(group, asked) or not together(group, count):
        return
    else:
        part = gathered(part, group)
        if group.rank():
            return
    found = {
        name: _share(first, again)
        for name in whole.counted
        if (first := whole.exact(name)) is not None and (again := part.exact(name)) is not None
    }
    whole.comes_again = found or None


def _share(first: RowCounter, again: RowCounter) -> float:
    """Which share of a table's lookups comes again, as in an epoch that is shuffled; the others are
    drawn anew. It is measured where that matters most: by the share of lookups that the hottest
    rows had, have in the next epoch, and were to have if all were drawn anew."""
    once, anew = first.distribution(), first.distribution(sample=True, in_order=True)
    assert once.ids is not None
    if not len(once.ids) or not again.samples:
        return 1.0
    sizes = np.unique(np.geomspace(1, len(once.ids), POINTS).astype(np.int64))
    lost = once.coverage(sizes) - anew.coverage(sizes)
    most = int(np.argmax(lost))
    if lost[most] < MATTERS:
        return 1.0
    hottest = np.sort(once.ids[: sizes[most]])
    taken, every = first.by_fold(hottest)
    now, all_now = again.by_fold(hottest)
    if not all_now.sum() or not every[:PART].sum():
        return 1.0
    shares, folds = taken[every > 0] / every[every > 0], np.count_nonzero(every[:PART])
    # How far two such parts of one epoch differ by chance: three deviations, for there are as many
    # chances as tables.
    chance = 3 * float(np.std(shares, ddof=1)) * np.sqrt(2 / folds) if len(shares) > 1 else 0.0
    missing = float(taken[:PART].sum() / every[:PART].sum() - now.sum() / all_now.sum())
    share = 1.0 if missing <= chance else max(0.0, 1 - missing / float(lost[most]))
    return share if share < ALIKE else 1.0
