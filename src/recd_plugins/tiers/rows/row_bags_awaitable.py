"""Bags of rows on their way from everywhere: pooled when they are first looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import torch
from torch import Tensor
from torchrec.distributed.types import LazyAwaitable, LazyGetItemMixin
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedTensor

from recd_plugins.compat.torchrec import LazyKeyedTensor
from recd_plugins.tiers.group import TableFeature
from recd_plugins.tiers.rows.bag_awaitable import TINY
from recd_plugins.tiers.rows.row_pool import Lookups, RowPool, pool_rows
from recd_plugins.tiers.rows.together import together
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.trip import RoutedGroup
from recd_plugins.tiers.updates.update import Update

__all__ = ["PooledRows", "RowBagsAwaitable"]


class PooledRows(LazyAwaitable[Mapping[TableFeature, Tensor]]):
    """The bags [B, D] of each slot, whose rows are all of one dimension."""

    def __init__(
        self,
        tiers: Tiers,
        update: Update,
        canonical: LazyAwaitable[dict[str, JaggedTensor]],
        divides: Sequence[bool],
    ) -> None:
        """`divides` tells of each slot whether its sums are divided, for the mean."""
        super().__init__()
        self._tiers = tiers
        self._update = update
        self._canonical = canonical
        self._divides = divides

    def _wait_impl(self) -> Mapping[TableFeature, Tensor]:
        if torch.is_grad_enabled():
            self._tiers.expect(self._update)
        canonical = self._canonical.wait()
        self._tiers.advance()
        slots = iter(self._tiers.slots)
        found: dict[TableFeature, Tensor] = {}
        for number, group in enumerate(self._update.trip.groups):
            own = list(islice(slots, len(group.segments.lengths)))
            rows = [canonical[slot.name].values() for slot in own]
            bags = pool_rows(
                group.passage.back(torch.cat(rows) if len(rows) > 1 else rows[0]),
                self._tiers.alive,
                self._pool(group, len(found)),
                partial(self._update.accumulate, number),
            )
            found.update(zip(own, bags.unflatten(0, (len(own), -1)).unbind(), strict=True))
        return found

    def _pool(self, group: RoutedGroup, first: int) -> RowPool:
        """That of slots `first` and on."""
        trip = self._update.trip
        batch_size, count = trip.lengths.shape[1], len(group.segments.lengths)
        ids = slice(group.start, group.start + sum(group.segments.lengths))
        bags = trip.bags[ids] - first * batch_size
        weights = None if trip.weights is None else trip.weights[ids]

        def lookups(which: Tensor, at: Tensor) -> Lookups:
            if len(at) == len(bags):
                return Lookups(which, bags, weights)
            return Lookups(which, bags[at], None if weights is None else weights[at])

        routed, asked = group.routed, group.asked
        everywhere = group.replicas.replicated_tier
        inverse = group.passage.inverse
        if inverse is None:
            inverse = torch.arange(len(routed.passed), device=bags.device)
        return RowPool(
            num_bags=count * batch_size,
            passed=lookups(inverse, routed.passed),
            replicated=lookups(routed.replicated.positions, routed.replicated.at),
            replica=None if everywhere is None else everywhere.rows,
            place=group.replicas.replicated_layout.place,
            per_node=None if asked is None else lookups(asked.inverse, routed.per_node.at),
            node_rows=None if group.rows is None else group.rows.wait(),
            divisors=list(self._divisors(first, count)),
        )

    def _divisors(self, first: int, count: int) -> Iterator[Tensor | None]:
        divides = self._divides[first : first + count]
        sizes = self._update.trip.bag_sizes() if any(divides) else None
        for slot, own in enumerate(divides, first):
            yield sizes[slot] + TINY if sizes is not None and own else None


class RowBagsAwaitable(LazyGetItemMixin[str, Tensor], LazyAwaitable[KeyedTensor]):
    """What an EmbeddingBagCollection yields, of the bags of its dimensions."""

    def __init__(
        self,
        parts: Sequence[LazyAwaitable[Mapping[TableFeature, Tensor]]],
        names: Mapping[TableFeature, str],
    ) -> None:
        """`names` are the keys of the slots, in their order."""
        super().__init__()
        self._parts, self._names = parts, names

    def _wait_impl(self) -> KeyedTensor:
        found = {slot: bags for part in self._parts for slot, bags in part.wait().items()}
        tied = together([found[slot] for slot in self._names])
        return LazyKeyedTensor(dict(zip(self._names.values(), tied, strict=True)))
