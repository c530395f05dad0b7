"""Ids on the way to the canonical table, and whose row is whose on the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torchrec.streamable import Multistreamable

from recd_plugins.tiers.errand import Collectives
from recd_plugins.tiers.group import TableGroup
from recd_plugins.tiers.ids.different import CoalescedIds, coalesce_by_table, of_keys, to_keys
from recd_plugins.tiers.ids.exchange import AskedIds, NodeExchange, ask_node
from recd_plugins.tiers.nodes import Nodes, Peers
from recd_plugins.tiers.router import Segments

__all__ = ["HomeIds"]


@dataclass(frozen=True)
class HomeIds(Multistreamable):
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
        cls,
        group: TableGroup,
        ids: Tensor,
        passed: Tensor,
        segments: Segments,
        nodes: Nodes,
        *,
        hot: bool = False,
    ) -> Collectives[HomeIds]:
        """Of a group's `ids` [N] those at `passed` [n], ascending; coalesced as the group says.

        Over a node it takes turns, which every rank of it must run, for the others' ids. Of a
        hot batch nothing passes.
        """
        if hot:
            inverse = None if group.coalesce == "none" else passed[:0]
            return cls(ids[:0], [0] * len(segments.lengths), inverse)
        ends = torch.tensor(segments.lengths, dtype=torch.int64, device=ids.device).cumsum(0)
        cuts = [0, *torch.searchsorted(passed, ends).tolist()]
        lengths = [end - start for start, end in pairwise(cuts)]
        if group.coalesce == "none":
            return cls(ids[passed], lengths, None)
        found = coalesce_by_table(ids[passed], _by_table(lengths, segments, len(group.tables)))
        if group.coalesce == "rank" or nodes.ranks_per_node == 1:
            return cls(found.ids, _by_slot(found.counts, segments), found.inverse)
        asked = _ask(found, group, nodes)
        answered = yield from ask_node(asked, nodes.node)
        theirs, inverse = _different_keys(answered.ids, len(group.tables))
        return cls(
            theirs.ids,
            _by_slot(theirs.counts, segments),
            asked.inverse[found.inverse],
            _Concentrated(answered, inverse, nodes.node),
        )

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

    asked: NodeExchange
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


def _ask(found: CoalescedIds, group: TableGroup, nodes: Nodes) -> AskedIds:
    """Ask each id of the rank that has the place in this node which its home has in its own.

    So ids cross between nodes on one way, and those at home in this node cross to no other.
    """
    keys = to_keys(found.ids, found.counts)
    blocks = torch.tensor(
        [-(-rows // nodes.world.size) for rows in group.num_rows], device=keys.device
    )
    homes = found.ids // blocks[of_keys(keys)[1]]
    concentrators = homes % nodes.ranks_per_node
    order = concentrators.argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    counts = torch.bincount(concentrators, minlength=nodes.ranks_per_node)
    return AskedIds(keys[order], counts, places)


def _different_keys(keys: Tensor, num_tables: int) -> tuple[CoalescedIds, Tensor]:
    """The different ones of `keys` [r] in any order; and which of them each is, [r]."""
    ids, tables = of_keys(keys)
    order = tables.argsort(stable=True)
    counts = torch.bincount(tables, minlength=num_tables).tolist()
    found = coalesce_by_table(ids[order], counts)
    inverse = torch.empty_like(order)
    inverse[order] = found.inverse
    return found, inverse


def _by_table(lengths: Sequence[int], segments: Segments, num_tables: int) -> list[int]:
    counts = [0] * num_tables
    for table, length in zip(segments.tables, lengths, strict=True):
        counts[table] += length
    return counts


def _by_slot(counts: Sequence[int], segments: Segments) -> list[int]:
    """How many each table has, as those of the first of its slots."""
    left = list(counts)
    lengths = []
    for table in segments.tables:
        lengths.append(left[table])
        left[table] = 0
    return lengths
