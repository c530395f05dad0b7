"""Ids on the way to the canonical table, and whose row is whose on the way back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torchrec.streamable import Multistreamable

from recd_plugins.tiers.errand import Errand
from recd_plugins.tiers.exchange import Asked, NodeIds, ask_node
from recd_plugins.tiers.group import TableGroup
from recd_plugins.tiers.nodes import Nodes, Peers
from recd_plugins.tiers.router import Segments

__all__ = ["Passage"]

SPAN = 1 << 40
"""Id i of table t has the key t · SPAN + i: far more than a table has rows, so that an id out
of range stays its table's, and TorchRec judges it."""


@dataclass(frozen=True)
class Passage(Multistreamable):
    """The ids that a group of tables sends to TorchRec, slot by slot."""

    ids: Tensor
    """[u] int64."""
    lengths: list[int]
    """How many each slot sends; they sum to u."""
    inverse: Tensor | None
    """[n] int64: which of the rows that come back each id that passed has; by default its own."""
    node: _Concentrated | None = None
    """Where ids are coalesced over the node, the rest of the way back."""

    @classmethod
    def of(
        cls, group: TableGroup, ids: Tensor, passed: Tensor, segments: Segments, nodes: Nodes
    ) -> Passage:
        """Of a group's `ids` [N] those at `passed` [n], ascending; coalesced as the group says.

        Over a node, every rank of it must call this, and waits for the others' ids.
        """
        ends = torch.tensor(segments.lengths, dtype=torch.int64, device=ids.device).cumsum(0)
        cuts = [0, *torch.searchsorted(passed, ends).tolist()]
        lengths = [end - start for start, end in pairwise(cuts)]
        if group.coalesce == "none":
            return cls(ids[passed], lengths, None)
        tables, counts = (
            torch.tensor(each, device=ids.device) for each in (segments.tables, lengths)
        )
        table = torch.repeat_interleave(tables, counts, output_size=len(passed))
        keys, inverse = torch.unique(ids[passed] + table * SPAN, return_inverse=True)
        node = None
        if group.coalesce == "node" and nodes.ranks_per_node > 1:
            asked = _ask(keys, group, nodes)
            inverse = asked.inverse[inverse]
            answered = Errand(ask_node(asked, nodes.node)).finish()
            keys, node_inverse = torch.unique(answered.ids, return_inverse=True)
            node = _Concentrated(answered, node_inverse, nodes.node)
        return cls(keys - _tables(keys) * SPAN, _lengths(keys, segments), inverse, node)

    def back(self, rows: Tensor) -> Tensor:
        """What came back for `ids` [u, D], as the rows that `inverse` counts."""
        if self.node is None:
            return rows
        own: Tensor = _Deconcentrate.apply(rows, self.node)
        return own

    def record_stream(self, stream: torch.Stream) -> None:
        self.ids.record_stream(stream)
        if self.inverse is not None:
            self.inverse.record_stream(stream)
        if self.node is not None:
            self.node.record_stream(stream)


@dataclass(frozen=True)
class _Concentrated(Multistreamable):
    """Ids that the ranks of a node had this one ask for, each once for all of them."""

    asked: NodeIds
    inverse: Tensor
    """[r] int64: which of the u different ids each that a rank asked is."""
    peers: Peers

    def record_stream(self, stream: torch.Stream) -> None:
        self.asked.record_stream(stream)
        self.inverse.record_stream(stream)


class _Deconcentrate(Function):
    """Rows go to the ranks of the node that asked for them, their gradients the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, node: _Concentrated) -> Tensor:
        ctx.node, ctx.count = node, len(rows)
        return node.asked.send_back(rows.index_select(0, node.inverse), node.peers).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        node: _Concentrated = ctx.node
        theirs = node.asked.send_there(gradient.contiguous(), node.peers).wait()
        summed = theirs.new_zeros(ctx.count, theirs.shape[1])
        return summed.index_add_(0, node.inverse, theirs), None


def _ask(keys: Tensor, group: TableGroup, nodes: Nodes) -> Asked:
    """Ask each id of the rank that has the place in this node which its home has in its own.

    So ids cross between nodes on one way, and those at home in this node cross to no other.
    """
    blocks = torch.tensor(
        [-(-rows // nodes.world.size) for rows in group.num_rows], device=keys.device
    )
    tables = _tables(keys)
    homes = (keys - tables * SPAN) // blocks[tables]
    concentrators = homes % nodes.ranks_per_node
    order = concentrators.argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    counts = torch.bincount(concentrators, minlength=nodes.ranks_per_node)
    return Asked(keys[order], counts, places)


def _tables(keys: Tensor) -> Tensor:
    return (keys + SPAN // 2) // SPAN


def _lengths(keys: Tensor, segments: Segments) -> list[int]:
    """How many of the sorted keys each table has, as those of the first of its slots."""
    firsts = [
        slot == 0 or table != segments.tables[slot - 1]
        for slot, table in enumerate(segments.tables)
    ]
    ends = (torch.arange(1, sum(firsts) + 1, device=keys.device) - 0.5) * SPAN
    counts = torch.searchsorted(keys, ends.long()).diff(
        prepend=ends.new_zeros(1, dtype=torch.int64)
    )
    by_table = iter(counts.tolist())
    return [next(by_table) if first else 0 for first in firsts]
