"""Embeddings on their way from everywhere: waited for when they are first looked at."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torchrec.distributed.types import LazyAwaitable
from torchrec.sparse.jagged_tensor import JaggedTensor

from recd_plugins.tiers.rows.merge import Sources, merge_sequences
from recd_plugins.tiers.rows.together import together
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.trip import RoutedGroup
from recd_plugins.tiers.updates.update import Update

__all__ = ["SequencesAwaitable"]


class SequencesAwaitable(LazyAwaitable[dict[str, JaggedTensor]]):
    """What an EmbeddingCollection yields: each id's row, in the order of the ids."""

    def __init__(
        self,
        tiers: Tiers,
        update: Update,
        canonical: LazyAwaitable[dict[str, JaggedTensor]],
        need_indices: bool,
    ) -> None:
        super().__init__()
        self._tiers = tiers
        self._update = update
        self._canonical = canonical
        self._need_indices = need_indices

    def _wait_impl(self) -> dict[str, JaggedTensor]:
        if torch.is_grad_enabled():
            self._tiers.expect(self._update)
        trip = self._update.trip
        canonical = self._canonical.wait()
        self._tiers.advance()
        rows = self._rows(canonical)
        ids = trip.ids.split(trip.length_per_feature)
        return {
            slot.name: JaggedTensor(
                values=values, lengths=lengths, weights=own if self._need_indices else None
            )
            for slot, values, lengths, own in zip(
                self._tiers.slots, rows, trip.lengths, ids, strict=True
            )
        }

    def _rows(self, canonical: dict[str, JaggedTensor]) -> Iterator[Tensor]:
        """The rows of each slot's ids, slot by slot."""
        slots = iter(self._tiers.slots)
        groups = self._update.trip.groups
        merged = []
        for number, group in enumerate(groups):
            parts = [canonical[next(slots).name].values() for _ in group.segments.lengths]
            rows = merge_sequences(
                group.passage.back(torch.cat(parts) if len(parts) > 1 else parts[0]),
                self._tiers.alive,
                _sources(group),
                partial(self._update.accumulate, number),
            )
            merged.append(rows)
        others = [canonical[slot.name].values() for slot in slots]
        tied = together([*merged, *others])
        for group, rows in zip(groups, tied, strict=False):
            # Of one slot no split, for its backward would copy the gradient.
            lengths = list(group.segments.lengths)
            yield from rows.split(lengths) if len(lengths) > 1 else [rows]
        yield from tied[len(groups) :]


def _sources(group: RoutedGroup) -> Sources:
    everywhere = group.replicas.replicated_tier
    return Sources(
        routed=group.routed,
        missed_inverse=group.passage.inverse,
        replicated=None if everywhere is None else everywhere.rows,
        layout=group.replicas.replicated_layout,
        per_node=None if group.rows is None else group.rows.wait(),
        per_node_inverse=None if group.asked is None else group.asked.inverse,
    )
