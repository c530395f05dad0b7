"""Rows that the ranks of a node ask each other for: who asks whom for which, and the way back.

A rank asks for rows of the tier `per_node`, and for ids that another rank of the node, their
concentrator, sends home for all (`home_ids`). An example, of rank 0 of a node of two ranks:

    it looks up positions 4 1 4 3 of the tier; an even position p is row p / 2 of rank 0
    AskedIds       ids 2, 0 1 (of rank 0, and of rank 1), counts [1, 2], inverse [0, 1, 0, 2]
    NodeExchange   num_asked [1, 2]; rank 1 asks it for rows 0 1: num_answered [1, 2], ids 2, 0 1
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.streamable import Multistreamable

from recd_plugins.tiers.collectives import Collectives
from recd_plugins.tiers.peers import Peers, Pending
from recd_plugins.tiers.replicas.tier_layout import TierLayout

__all__ = ["AskedIds", "NodeExchange", "ask_node"]


@dataclass(frozen=True)
class AskedIds:
    """The different ids that this rank asks of its node, those that it asks of rank 0 first."""

    ids: Tensor
    """[u] int64, as the rank that is asked knows them: rows of its share of the tier `per_node`, or
    keys (`to_keys`) that it sends home for the node."""
    counts: Tensor
    """[ranks_per_node] int64: how many are asked of each rank."""
    inverse: Tensor
    """[n] int64: which of the u each of this rank's n occurrences is."""

    @classmethod
    def of(cls, positions: Tensor, layout: TierLayout) -> AskedIds:
        """The rows at `positions` [n] of a tier that is dealt out by `layout`."""
        addresses, inverse = torch.unique(layout.address(positions), return_inverse=True)
        addresses = addresses.long()
        size = layout.share_rows
        begins = torch.arange(0, layout.num_addresses + 1, size, device=addresses.device)
        counts = torch.searchsorted(addresses, begins).diff()
        return cls(addresses % size, counts, inverse)


@dataclass
class NodeExchange(Multistreamable):
    """An exchange within the node that its ranks have agreed on: who asks whom for how many."""

    ids: Tensor
    """[r] int64: the `AskedIds.ids` that ranks of the node ask of this one, those of rank 0
    first."""
    num_asked: list[int]
    """The number of ids that this rank asks of each rank of the node; they sum to u."""
    num_answered: list[int]
    """The number of ids that each rank asks of this one; they sum to r."""

    def rows_to_askers(self, rows: Tensor, node: Peers) -> Pending:
        """Send `rows` [r, D] of `ids` to the ranks that asked for them; [u, D] come for the ids
        that this rank asked for."""
        return node.all_to_all(rows, self.num_answered, self.num_asked)

    def gradients_to_asked(self, gradients: Tensor, node: Peers) -> Pending:
        """The way back: send `gradients` [u, D] of the rows that this rank asked for to the ranks
        that it asked; [r, D] come, of `ids`."""
        return node.all_to_all(gradients, self.num_asked, self.num_answered)

    def record_stream(self, stream: torch.Stream) -> None:
        self.ids.record_stream(stream)


def ask_node(asked: AskedIds, node: Peers) -> Collectives[NodeExchange]:
    """Every rank of the node must call it. A rank first sends how many ids it asks for, then the
    ids."""
    answered = yield node.all_to_all(asked.counts)
    answers, sends = torch.stack([answered, asked.counts]).tolist()
    ids = yield node.all_to_all(asked.ids, sends, answers)
    return NodeExchange(ids, sends, answers)
