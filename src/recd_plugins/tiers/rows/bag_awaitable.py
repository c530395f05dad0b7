"""Pooled embeddings on their way from everywhere: waited for when they are first looked at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchrec.distributed.types import LazyAwaitable, LazyGetItemMixin
from torchrec.sparse.jagged_tensor import KeyedTensor

from recd_plugins.tiers.rows.bags import GroupBags, PooledFeature, add_bags
from recd_plugins.tiers.rows.packing import PackedBags
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.trip import RoutedBatch, RoutedGroup
from recd_plugins.tiers.updates.update import Update

__all__ = ["BagsAwaitable"]

TINY = 1e-6
"""What TorchRec adds to a bag's length, that the mean of an empty one be 0."""


class BagsAwaitable(LazyGetItemMixin[str, Tensor], LazyAwaitable[KeyedTensor]):
    """What an EmbeddingBagCollection yields: the pooled rows of each sample."""

    def __init__(
        self,
        tiers: Tiers,
        update: Update,
        packed: PackedBags,
        canonical: LazyAwaitable[KeyedTensor],
        divides: Sequence[bool],
    ) -> None:
        """`divides` tells of each slot whether its sums are divided here, for the mean."""
        super().__init__()
        self._tiers = tiers
        self._update = update
        self._packed = packed
        self._canonical = canonical
        self._divides = divides

    def _wait_impl(self) -> KeyedTensor:
        if torch.is_grad_enabled():
            self._tiers.expect(self._update)
        canonical = self._canonical.wait()
        slots = self._slots(canonical)
        trip = self._update.trip
        groups: list[GroupBags] = []
        for group in trip.groups:
            first = sum(len(each.slots) for each in groups)
            groups.append(self._group(trip, group, slots, first))
        values = add_bags(
            canonical.values(),
            self._tiers.alive,
            trip.lengths.shape[1],
            slots,
            self._packed,
            groups,
            self._update.accumulate,
        )
        return KeyedTensor(
            keys=canonical.keys(), length_per_key=canonical.length_per_key(), values=values
        )

    def _slots(self, canonical: KeyedTensor) -> list[PooledFeature]:
        columns = {}
        end = 0
        for key, width in zip(canonical.keys(), canonical.length_per_key(), strict=True):
            columns[key] = end, end + width
            end += width
        sizes = self._update.trip.bag_sizes() if any(self._divides) else None
        return [
            PooledFeature(
                columns[slot.name], sizes[number] + TINY if sizes is not None and own else None
            )
            for number, (slot, own) in enumerate(zip(self._tiers.slots, self._divides, strict=True))
        ]

    def _group(
        self, trip: RoutedBatch, group: RoutedGroup, slots: Sequence[PooledFeature], first: int
    ) -> GroupBags:
        """That of slots `first` and on."""
        ids = slice(group.start, group.start + sum(group.segments.lengths))
        everywhere = group.replicas.replicated_tier
        return GroupBags(
            trip=group,
            slots=slots[first : first + len(group.segments.lengths)],
            bags=trip.bags[ids] - first * trip.lengths.shape[1],
            weights=None if trip.weights is None else trip.weights[ids],
            replicated=None if everywhere is None else everywhere.rows,
            per_node=None if group.rows is None else group.rows.wait(),
        )
