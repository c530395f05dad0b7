"""Where ids travel: those that miss go home, each once where they are coalesced; those of the tier
`per_node` go to the rank of the node that has their rows. The rows come back.

Where ids are coalesced over a node, equal ids that miss first meet at one rank of it, their
concentrator, which sends them home for all. TorchRec's own exchange then waits for the node's while
another batch is computed.

    plain, or over a rank    misses -> home                  rows -> the rank
    over a node              misses -> concentrator -> home  rows -> concentrator -> who asked
    `per_node`               hits -> the rank of the node that has their rows, and back
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torchrec.distributed.embedding_sharding import (
    FusedKJTListSplitsAwaitable,
    KJTListAwaitable,
    KJTListSplitsAwaitable,
    KJTSplitsAllToAllMeta,
)
from torchrec.distributed.types import Awaitable
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Multistreamable

from recd_plugins.sparse.rows.coalesce import coalesce
from recd_plugins.sparse.rows.memory import numbers_on
from recd_plugins.sparse.rows.sums import summed_rows
from recd_plugins.tiers.collectives import (
    Collectives,
    CollectiveSequence,
    Nodes,
    Peers,
    Pending,
)
from recd_plugins.tiers.replicas import TierLayout
from recd_plugins.tiers.routing.routed_ids import RoutedIds, Segments
from recd_plugins.tiers.tables import TableGroup

__all__ = [
    "AskedIds",
    "CoalescedIds",
    "DeferredExchange",
    "DeferredSplits",
    "HomeIds",
    "NodeExchange",
    "ask_node",
    "coalesce_by_table",
    "of_keys",
    "to_keys",
]

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
    """[n] int64: which of the rows that come `back` each id that missed has; by default its own."""
    concentrated: _Concentrated | None = None
    """The rest of the way back, where ids are coalesced over the node: `ids` are then those that
    this rank concentrates."""

    @classmethod
    def of(
        cls,
        group: TableGroup,
        ids: Tensor,
        routed: RoutedIds,
        segments: Segments,
        nodes: Nodes,
        *,
        hot: bool = False,
    ) -> Collectives[HomeIds]:
        """Coalesce those of a group's `ids` [N] that miss, as they are `routed`.

        Over a node this runs collectives, so every rank of it must call it; otherwise the ids are
        known at once. No id of a hot batch misses.
        """
        if hot:
            inverse = None if group.coalesce == "none" else routed.missed[:0]
            return cls(ids[:0], [0] * len(segments.lengths), inverse)
        missed, lengths = routed.missed, routed.missed_lengths
        if group.coalesce == "none":
            return cls(ids[missed], lengths, None)
        found = coalesce_by_table(ids[missed], _by_table(lengths, segments, len(group.tables)))
        if group.coalesce == "rank" or nodes.ranks_per_node == 1:
            return cls(found.ids, _by_feature(found.counts, segments), found.inverse)
        asked = _ask_concentrators(found, group, nodes)
        exchange = yield from ask_node(asked, nodes.node)
        theirs, inverse = _coalesce_keys(exchange.ids, len(group.tables))
        return cls(
            theirs.ids,
            _by_feature(theirs.counts, segments),
            asked.inverse[found.inverse],
            _Concentrated(exchange, inverse, nodes.node),
        )

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


def _ask_concentrators(found: CoalescedIds, group: TableGroup, nodes: Nodes) -> AskedIds:
    """Ask each id of the rank in this node that has the same place as the id's home has in its
    node.

    So an id crosses between nodes once, between ranks of one place; an id at home in this node
    crosses to no other.
    """
    keys = to_keys(found.ids, found.counts)
    blocks = numbers_on(keys.device, [-(-rows // nodes.world.size) for rows in group.num_rows])
    homes = found.ids // blocks[of_keys(keys)[1]]
    concentrators = homes % nodes.ranks_per_node
    order = concentrators.argsort(stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    counts = torch.bincount(concentrators, minlength=nodes.ranks_per_node)
    return AskedIds(keys[order], counts, inverse)


def _coalesce_keys(keys: Tensor, num_tables: int) -> tuple[CoalescedIds, Tensor]:
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


def _by_feature(counts: Sequence[int], segments: Segments) -> list[int]:
    """The number of ids of each table, all counted for the first of its features."""
    left = list(counts)
    lengths = []
    for table in segments.tables:
        lengths.append(left[table])
        left[table] = 0
    return lengths


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
        ends = torch.arange(1, layout.shares + 1, device=addresses.device) * layout.share_rows
        cuts = torch.searchsorted(addresses, ends)
        return cls(addresses % layout.share_rows, cuts.diff(prepend=cuts.new_zeros(1)), inverse)


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


class CoalescedIds(NamedTuple):
    """N ids as u different ones: id n is `ids[inverse[n]]`. Equal ids of two tables are two."""

    ids: Tensor
    """[u] int64, table by table."""
    counts: list[int]
    """The number of ids that each table has; they sum to u."""
    inverse: Tensor
    """[N] int64."""


def coalesce_by_table(ids: Tensor, counts: Sequence[int]) -> CoalescedIds:
    """The first `counts[0]` of `ids` [N] int64 are table 0's, and so on."""
    if ids.is_cuda:
        keys, inverse = torch.unique(to_keys(ids, counts), return_inverse=True)
        ends = SPAN * torch.arange(1, len(counts) + 1, device=keys.device) - SPAN // 2
        cuts = [0, *torch.searchsorted(keys, ends).tolist()]
        found = [stop - start for start, stop in pairwise(cuts)]
        return CoalescedIds(of_keys(keys)[0], found, inverse)
    parts = [coalesce(part) for part in ids.split(list(counts))]
    found = [len(part.ids) for part in parts]
    inverse = torch.empty_like(ids)
    for part, own, before in zip(
        parts, inverse.split(list(counts)), accumulate(found, initial=0), strict=False
    ):
        torch.add(part.inverse_lookup, before, out=own)
    return CoalescedIds(torch.cat([part.ids for part in parts]), found, inverse)


def to_keys(ids: Tensor, counts: Sequence[int]) -> Tensor:
    """Keys that differ where tables do, of ids that lie as `coalesce_by_table` takes them."""
    each = numbers_on(ids.device, counts)
    tables = torch.arange(len(counts), device=ids.device)
    return ids + SPAN * torch.repeat_interleave(tables, each, output_size=len(ids))


def of_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The ids of keys, and their tables."""
    tables = (keys + SPAN // 2) // SPAN
    return keys - tables * SPAN, tables


Sent = Sequence[Awaitable[KeyedJaggedTensor]]


class DeferredExchange:
    """TorchRec's exchange of ids, deferred until the node has agreed on them: `send` begins it
    then.

    Under a pipeline another batch is computed meanwhile, and calls `advance` at places where the
    links have had time. Every rank does so at the same places, for each call runs collectives.
    """

    def __init__(
        self,
        home_ids: Sequence[CollectiveSequence[HomeIds]],
        send: Callable[[], KJTListSplitsAwaitable[Any]],
        device: torch.device,
    ) -> None:
        """`device` is that of the ids, whose current stream the exchange stays on."""
        self._home_ids, self._send = home_ids, send
        self._splits: Callable[[], KJTListAwaitable] | None = None
        self._sent: Sent | None = None
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    @property
    def begun(self) -> bool:
        """Whether TorchRec has been asked to send the ids."""
        return self._splits is not None

    def advance(self) -> None:
        """The node's next collective, or after its last one TorchRec's own."""
        with torch.cuda.stream(self._stream):
            for one in self._home_ids:
                one.advance()
            if all(one.done for one in self._home_ids):
                self._begin()

    def finish(self) -> Sent:
        """The ids on their way to their tables, for each sharding type that TorchRec exchanges by
        itself."""
        if self._sent is None:
            for one in self._home_ids:
                one.finish()
            self._begin()
            assert self._splits is not None
            self._sent = self._splits().awaitables
        return self._sent

    def _begin(self) -> None:
        if self._splits is None:
            self._splits = _begin_splits(self._send())


class DeferredSplits(Awaitable[Awaitable[KeyedJaggedTensor]]):
    """The splits of one of TorchRec's exchanges that are deferred, as TorchRec waits for them."""

    def __init__(self, deferred: DeferredExchange, number: int) -> None:
        super().__init__()
        self._deferred, self._number = deferred, number

    def _wait_impl(self) -> Awaitable[KeyedJaggedTensor]:
        return self._deferred.finish()[self._number]


def _begin_splits(request: KJTListSplitsAwaitable[Any]) -> Callable[[], KJTListAwaitable]:
    """Begin the exchange of splits, which TorchRec leaves to its caller under pipelines that fuse
    them."""
    fused = [one for one in request.awaitables if isinstance(one, KJTSplitsAllToAllMeta)]
    if not fused:
        return lambda: request.wait()
    splits = FusedKJTListSplitsAwaitable([request], [request.ctx], fused[0].pg)
    return lambda: splits.wait()[0]
