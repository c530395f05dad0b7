"""The ids that miss, on their way home: each once where they are coalesced.

Where ids are coalesced over a node, equal ids that miss first meet at one rank of it, their
concentrator, which sends them home for all. TorchRec's own exchange then waits for the node's
(`deferred_exchange`).

    plain, or over a rank    misses -> home                  rows -> the rank
    over a node              misses -> concentrator -> home  rows -> concentrator -> who asked
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torchrec.streamable import Multistreamable

from recd_plugins.sparse.rows.coalesce import CoalescedParts, coalesce_parts
from recd_plugins.sparse.rows.memory import numbers_on
from recd_plugins.sparse.rows.sums import summed_rows
from recd_plugins.tiers.collectives import Collectives
from recd_plugins.tiers.exchange.node_exchange import AskedIds, NodeExchange, ask_node
from recd_plugins.tiers.peers import Nodes, Peers
from recd_plugins.tiers.routing.routed_ids import RoutedIds, Segments
from recd_plugins.tiers.tables import TableGroup

__all__ = ["HomeIds", "coalesce_by_table", "find_home_ids", "of_keys", "to_keys"]

SPAN = 1 << 40
"""Id i of table t has the key t · SPAN + i: far more than a table has rows, so that an id out
of range stays its table's, and TorchRec judges it."""


@dataclass(frozen=True)
class HomeIds(Multistreamable):
    """The ids that this rank sends to the home of a group's tables, feature by feature."""

    ids: Tensor
    """[u] int64."""
    lengths: list[int]
    """The number of ids that each feature sends; they sum to u."""
    inverse: Tensor | None
    """[n] int64: which of the rows that come `back` each id that missed has; None where the i-th
    has row i."""
    concentrated: _Concentrated | None = None
    """The rest of the way back, where ids are coalesced over the node: `ids` are then those that
    this rank concentrates."""

    def back(self, rows: Tensor) -> Tensor:
        """The rows that `inverse` counts, given the `rows` [u, D] that TorchRec brought for `ids`:
        the same ones, or over a node the rows that concentrators asked for on behalf of this rank.

        Where ids are coalesced over a node this runs an exchange, and so does its backward: every
        rank must call it.
        """
        if self.concentrated is None:
            return rows
        own: Tensor = _ToAskers.apply(rows, self.concentrated)
        return own

    def record_stream(self, stream: torch.Stream) -> None:
        self.ids.record_stream(stream)
        if self.inverse is not None:
            self.inverse.record_stream(stream)
        if self.concentrated is not None:
            self.concentrated.record_stream(stream)


@dataclass(frozen=True)
class _Concentrated(Multistreamable):
    """The ids that this rank, their concentrator, asks for once on behalf of all ranks of its
    node."""

    exchange: NodeExchange
    """The exchange by which they came, r in all."""
    inverse: Tensor
    """[r] int64: which of the u different ids each that a rank asked is."""
    node: Peers

    def record_stream(self, stream: torch.Stream) -> None:
        self.exchange.record_stream(stream)
        self.inverse.record_stream(stream)


class _ToAskers(Function):
    """Rows go to the ranks of the node that asked for them, their gradients the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ids: _Concentrated) -> Tensor:
        ctx.ids, ctx.count = ids, len(rows)
        return ids.exchange.rows_to_askers(rows.index_select(0, ids.inverse), ids.node).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ids: _Concentrated = ctx.ids
        theirs = ids.exchange.gradients_to_asked(gradient.contiguous(), ids.node).wait()
        return summed_rows(theirs, ids.inverse, ctx.count), None


def find_home_ids(
    group: TableGroup,
    ids: Tensor,
    routed: RoutedIds,
    segments: Segments,
    nodes: Nodes,
    *,
    hot: bool = False,
) -> Collectives[HomeIds]:
    """Coalesce those of a group's `ids` [N] that miss, as they are `routed`.

    Over a node this runs collectives, so every rank of it must call it; otherwise the ids are known
    at once. No id of a hot batch misses.
    """
    if hot:
        inverse = None if group.coalesce == "none" else routed.missed[:0]
        return HomeIds(ids[:0], [0] * len(segments.lengths), inverse)
    missed, lengths = routed.missed, routed.missed_lengths
    if group.coalesce == "none":
        return HomeIds(ids[missed], lengths, None)
    found = coalesce_by_table(ids[missed], _by_table(lengths, segments, len(group.tables)))
    if group.coalesce == "rank" or nodes.ranks_per_node == 1:
        return HomeIds(found.ids, _by_feature(found.counts, segments), found.inverse_lookup)
    asked = _asked_of_concentrators(found, group, nodes)
    exchange = yield from ask_node(asked, nodes.node)
    theirs, inverse = _coalesce_keys(exchange.ids, len(group.tables))
    return HomeIds(
        theirs.ids,
        _by_feature(theirs.counts, segments),
        asked.inverse[found.inverse_lookup],
        _Concentrated(exchange, inverse, nodes.node),
    )


def _asked_of_concentrators(found: CoalescedParts, group: TableGroup, nodes: Nodes) -> AskedIds:
    """What to ask of each concentrator: it is the rank of this node that has the same place as the
    id's home has in its node.

    So an id crosses between nodes once, between ranks of one place; an id at home in this node
    crosses to no other.
    """
    keys = to_keys(found.ids, found.counts)
    blocks = numbers_on(keys.device, [-(-rows // nodes.world.size) for rows in group.num_rows])
    homes = found.ids // blocks[of_keys(keys)[1]]
    concentrators = homes % nodes.ranks_per_node
    ordered, order = concentrators.sort(stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    # `bincount` would wait for a GPU, so each concentrator's first place is searched for.
    begins = torch.searchsorted(
        ordered, torch.arange(nodes.ranks_per_node + 1, device=order.device)
    )
    return AskedIds(keys[order], begins.diff(), inverse)


def _coalesce_keys(keys: Tensor, num_tables: int) -> tuple[CoalescedParts, Tensor]:
    """The different ones of `keys` [r] in any order; and which of them each is, [r]."""
    if keys.is_cuda:
        found = _different_keys(keys, num_tables)
        return found, found.inverse_lookup
    ids, tables = of_keys(keys)
    order = tables.argsort(stable=True)
    counts = torch.bincount(tables, minlength=num_tables).tolist()
    found = coalesce_by_table(ids[order], counts)
    inverse = torch.empty_like(order)
    inverse[order] = found.inverse_lookup
    return found, inverse


def _by_table(lengths: Sequence[int], segments: Segments, num_tables: int) -> list[int]:
    counts = [0] * num_tables
    for table, length in zip(segments.tables, lengths, strict=True):
        counts[table] += length
    return counts


def _by_feature(counts: Sequence[int], segments: Segments) -> list[int]:
    """The number of ids of each table, all counted for the first of its features."""
    left = list(counts)
    lengths = []
    for table in segments.tables:
        lengths.append(left[table])
        left[table] = 0
    return lengths


def coalesce_by_table(ids: Tensor, counts: Sequence[int]) -> CoalescedParts:
    """The first `counts[0]` of `ids` [N] int64 are table 0's, and so on."""
    if ids.is_cuda:
        return _different_keys(to_keys(ids, counts), len(counts))
    return coalesce_parts(ids, counts)


def _different_keys(keys: Tensor, num_tables: int) -> CoalescedParts:
    """The same of `keys` [N] on CUDA, in any order."""
    different, inverse = torch.unique(keys, return_inverse=True)
    if num_tables == 1:
        return CoalescedParts(different, [len(different)], inverse)
    ends = [table * SPAN - SPAN // 2 for table in range(1, num_tables + 1)]
    cuts = [0, *torch.searchsorted(different, numbers_on(keys.device, ends)).tolist()]
    counts = [stop - start for start, stop in pairwise(cuts)]
    return CoalescedParts(of_keys(different)[0], counts, inverse)


def to_keys(ids: Tensor, counts: Sequence[int]) -> Tensor:
    """Keys that differ where tables do, of ids that lie as `coalesce_by_table` takes them."""
    if len(counts) == 1:
        return ids
    firsts = [table * SPAN for table in range(len(counts))]
    each, first_of = numbers_on(ids.device, [counts, firsts])
    return ids + torch.repeat_interleave(first_of, each, output_size=len(ids))


def of_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The ids of keys, and their tables."""
    tables = (keys + SPAN // 2) // SPAN
    return keys - tables * SPAN, tables
