"""Sums of hot rows over bags, added to those that TorchRec makes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from recd_plugins.tiers.rows.packing import PackedBags
from recd_plugins.tiers.trip import RoutedGroup
from recd_plugins.tiers.updates.entries import Entries, HotGradients

__all__ = ["GroupBags", "PooledFeature", "add_bags"]

Columns = tuple[int, int]


@dataclass(frozen=True)
class PooledFeature:
    """Where a slot is in what the collection yields."""

    columns: Columns
    """The first of its columns, and the one after the last."""
    divisor: Tensor | None
    """[B]: what mean pooling divides the slot's sums by; none where it sums."""


@dataclass(frozen=True)
class GroupBags:
    """The bags of one group's ids: bag s · B + b is that of slot s and sample b."""

    trip: RoutedGroup
    slots: Sequence[PooledFeature]
    bags: Tensor
    """[N] int64: whose each id is."""
    weights: Tensor | None
    """[N] float32."""
    replicated: Tensor | None
    """[H, D]: the replica on this rank."""
    per_node: Tensor | None
    """[u, D]: the rows that this rank asked of its node."""

    def sums(self, batch_size: int) -> Tensor:
        """[S · B, D] float32: the hot rows' part."""
        width = self.trip.replicas.group.like.shape[1]
        device = self.bags.device
        sums = torch.zeros(len(self.slots) * batch_size, width, device=device)
        routed = self.trip.routed
        if self.replicated is not None:
            rows = self.replicated.index_select(0, routed.replicated.positions)
            self._add(sums, rows, routed.replicated.at)
        if self.per_node is not None:
            assert self.trip.asked is not None
            rows = self.per_node.index_select(0, self.trip.asked.inverse)
            self._add(sums, rows, routed.per_node.at)
        return sums

    def gradients(self, sums: Tensor) -> HotGradients:
        """Of the rows, from those of the sums [S · B, D]."""
        routed = self.trip.routed
        at, positions = routed.replicated
        everywhere = Entries(
            places=self.trip.replicas.replicated_layout.place(positions),
            gradients=sums,
            sources=self.bags[at],
            weights=None if self.weights is None else self.weights[at],
        )
        if self.per_node is None:
            return HotGradients(everywhere, None)
        assert self.trip.asked is not None
        at = routed.per_node.at
        shared = Entries(
            places=self.trip.asked.inverse,
            gradients=sums,
            sources=self.bags[at],
            weights=None if self.weights is None else self.weights[at],
        )
        return HotGradients(everywhere, shared.summed(len(self.per_node)))

    def _add(self, sums: Tensor, rows: Tensor, at: Tensor) -> None:
        rows = rows.float()
        if self.weights is not None:
            rows = rows * self.weights[at].unsqueeze(1)
        sums.index_add_(0, self.bags[at], rows)


class _AddBags(Function):
    @staticmethod
    def forward(
        ctx: Any,
        canonical: Tensor,
        alive: Tensor,
        batch_size: int,
        slots: Sequence[PooledFeature],
        packed: PackedBags,
        groups: Sequence[GroupBags],
        keep: Callable[[int, HotGradients], None],
    ) -> Tensor:
        ctx.slots, ctx.packed, ctx.groups, ctx.keep = slots, packed, groups, keep
        ctx.canonical_shape = canonical.shape
        bags = canonical.new_zeros(batch_size, canonical.shape[1])
        for number, slot in enumerate(slots):
            packed.unpack(canonical[:, slice(*slot.columns)], number, bags[:, slice(*slot.columns)])
        for group in groups:
            sums = group.sums(batch_size).unflatten(0, (len(group.slots), batch_size))
            for slot, own in zip(group.slots, sums, strict=True):
                bags[:, slice(*slot.columns)] += own
        for slot in slots:
            if slot.divisor is not None:
                bags[:, slice(*slot.columns)] /= slot.divisor.unsqueeze(1)
        return bags

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if any(slot.divisor is not None for slot in ctx.slots):
            gradient = gradient.clone()
            for slot in ctx.slots:
                if slot.divisor is not None:
                    gradient[:, slice(*slot.columns)] /= slot.divisor.unsqueeze(1)
        for number, group in enumerate(ctx.groups):
            sums = torch.cat([gradient[:, slice(*slot.columns)] for slot in group.slots])
            ctx.keep(number, group.gradients(sums.float()))
        passed = gradient.new_zeros(ctx.canonical_shape)
        for number, slot in enumerate(ctx.slots):
            columns = slice(*slot.columns)
            ctx.packed.pack(gradient[:, columns], number, passed[:, columns])
        return passed, None, None, None, None, None, None


def add_bags(
    canonical: Tensor,
    alive: Tensor,
    batch_size: int,
    slots: Sequence[PooledFeature],
    packed: PackedBags,
    groups: Sequence[GroupBags],
    keep: Callable[[int, HotGradients], None],
) -> Tensor:
    """[B, C]: the sums of all ids, from TorchRec's `canonical` [stride, C] of those that passed.

    `slots` are all of them, in the order of the trip; `groups` those with hot rows. Backward
    yields the gradient of `canonical` to TorchRec, and hands each group's to `keep`. `alive`
    requires a gradient (that never comes), so that backward gets here on every rank.
    """
    bags: Tensor = _AddBags.apply(canonical, alive, batch_size, slots, packed, groups, keep)
    return bags
