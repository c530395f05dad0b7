"""Hot batches are held to their mark: an id without a replica would be looked up nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.tiers.group import TableFeature
from recd_plugins.tiers.trip import RoutedBatch

__all__ = ["check_hot"]


def check_hot(trip: RoutedBatch, slots: Sequence[TableFeature]) -> None:
    """Refuse a batch that is marked hot and has an id that is not replicated on every rank.

    Before this batch's first collective, but on this rank alone: the others wait for it until
    it ends.
    """
    outside = [
        at[:1] + group.start
        for group in trip.groups
        for at in (group.routed.passed, group.routed.per_node.at)
    ]
    numbers = [int(at) for at in outside if len(at)]
    if trip.num_tiered < len(trip.ids):
        numbers.append(trip.num_tiered)
    if not numbers:
        return
    first = min(numbers)
    ends = np.fromiter(accumulate(trip.length_per_feature), np.int64)
    slot = slots[int(np.searchsorted(ends, first, side="right"))]
    raise DataError(
        f"a batch is marked hot, but id {int(trip.ids[first])} of table {slot.table!r} (feature "
        f"{slot.feature!r}) has no replica on every rank. Mark batches by the tier plan that the "
        "model was sharded with, after every transform of ids."
    )
