"""The exchange within a node: ids go to the rank that has their rows, and rows come back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.streamable import Multistreamable

from recd_plugins.tiers.errand import Collectives
from recd_plugins.tiers.nodes import Peers, Pending
from recd_plugins.tiers.updates.share import Layout

__all__ = ["AskedIds", "NodeExchange", "ask_node"]


@dataclass(frozen=True)
class AskedIds:
    """What this rank asks of its node: different ids, those of rank 0's share first."""

    ids: Tensor
    """[u] int64: what the rank that is asked knows a row by."""
    counts: Tensor
    """[W] int64: how many are asked of each rank."""
    inverse: Tensor
    """[n] int64: which of the u a rank's n occurrences are."""

    @classmethod
    def of(cls, positions: Tensor, layout: Layout) -> AskedIds:
        """Rows of a tier that is dealt out by `layout`; many a one more than once."""
        places, inverse = torch.unique(layout.place(positions), return_inverse=True)
        ends = torch.arange(1, layout.ranks_per_node + 1, device=places.device) * layout.share_rows
        cuts = torch.searchsorted(places, ends)
        return cls(places % layout.share_rows, cuts.diff(prepend=cuts.new_zeros(1)), inverse)


@dataclass
class NodeExchange(Multistreamable):
    """What the node asks of this rank, and how many it asked of others."""

    ids: Tensor
    """[r] int64, by the rank that asks."""
    asked: list[int]
    """Of each rank."""
    answers: list[int]
    """To each rank; they sum to r."""

    def send_back(self, rows: Tensor, node: Peers) -> Pending:
        """`rows` [r, D] for the ids asked of this rank; [u, D] for those that it asked."""
        return node.all_to_all(rows, self.answers, self.asked)

    def send_there(self, rows: Tensor, node: Peers) -> Pending:
        """`rows` [u, D], of the ids that this rank asked, to whom it asked; [r, D] arrive."""
        return node.all_to_all(rows, self.asked, self.answers)

    def record_stream(self, stream: torch.Stream) -> None:
        self.ids.record_stream(stream)


def ask_node(asked: AskedIds, node: Peers) -> Collectives[NodeExchange]:
    """Every rank of the node must ask; first it says how many, then which."""
    answers = (yield node.all_to_all(asked.counts)).tolist()
    sends = asked.counts.tolist()
    ids = yield node.all_to_all(asked.ids, sends, answers)
    return NodeExchange(ids, sends, answers)
