"""A batch that is routed: the tier and position of each id, and what came of it since.

While TorchRec sends the ids that miss home (`home_ids`), the ranks exchange what they must know
about the others (`group_request`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from torchrec.streamable import Multistreamable

from recd_plugins.errors import DataError
from recd_plugins.tiers.collectives import CollectiveSequence
from recd_plugins.tiers.exchange.group_request import GroupAnswer, GroupRequest
from recd_plugins.tiers.exchange.home_ids import HomeIds, find_home_ids
from recd_plugins.tiers.exchange.node_exchange import AskedIds
from recd_plugins.tiers.peers import Nodes, Pending
from recd_plugins.tiers.replicas.group_replicas import GroupReplicas, Replicas
from recd_plugins.tiers.routing.routed_ids import RoutedIds, Segments
from recd_plugins.tiers.tables import TableFeature

__all__ = ["GroupIds", "RoutedBatch", "RoutedGroup", "begins", "check_hot"]


@dataclass
class RoutedBatch(Multistreamable):
    """The ids of one batch, which keep the version of the replicas that they were routed by."""

    replicas: Replicas
    groups: list[RoutedGroup]
    given: Tensor
    """[N]: the ids of all features, one feature after another, of the type that they came in."""
    ids: Tensor
    """[N] int64: the rows that are looked up for them, which are other ones for ids of no row."""
    lengths: Tensor
    """[F, B]: the number of ids that each sample has in each feature."""
    length_per_feature: list[int]
    weights: Tensor | None = None
    """[N]: the weights that the KJT has of its ids, of the type that they came in."""
    hot: bool = False
    """Whether all ids of all ranks are replicated on every rank, so that nothing is exchanged."""

    @property
    def batch_size(self) -> int:
        return self.lengths.shape[1]

    @property
    def knows_home_ids(self) -> bool:
        """Whether the ids that go home are known, without another exchange in the node."""
        return all(group.home_ids.done for group in self.groups)

    @cached_property
    def bag_of_id(self) -> Tensor:
        """[N] int64: id i is in bag f · B + b, of feature f and sample b."""
        lengths = self.lengths.flatten().long()
        return torch.repeat_interleave(lengths, output_size=len(self.ids))

    @cached_property
    def weighing(self) -> Tensor | None:
        """[N] float32: the weights of rows. TorchRec's kernels take floats for weights and ignore
        any other type, such as the times that some trainers put there."""
        weights = self.weights
        return weights.float() if weights is not None and weights.is_floating_point() else None

    def bag_sizes(self) -> Tensor:
        """[F, B]: the ids of each bag, or the sum of their weights."""
        if self.weights is None:
            return self.lengths
        sums = self.weights.new_zeros(self.lengths.numel()).index_add_(
            0, self.bag_of_id, self.weights
        )
        return sums.view_as(self.lengths)

    @cached_property
    def missed(self) -> Tensor:
        """[n] int64, ascending: which of the ids miss; all ids of tables without tiers do."""
        others = torch.arange(self.num_tiered, len(self.ids), device=self.ids.device)
        return torch.cat([*(group.routed.missed + group.start for group in self.groups), others])

    def missed_lengths(self) -> Tensor:
        """[F, B] int32: how many ids of each bag miss."""
        counts = begins(self.bag_of_id[self.missed], self.lengths.numel()).diff()
        return counts.view_as(self.lengths).to(torch.int32)

    @property
    def num_tiered(self) -> int:
        """The number of ids of tables with tiers; those of the others come after them."""
        return sum(sum(group.segments.lengths) for group in self.groups)

    def record_stream(self, stream: torch.Stream) -> None:
        # Where somebody asked for them.
        made = (vars(self).get(name) for name in ("bag_of_id", "weighing", "missed"))
        for tensor in (self.given, self.ids, self.lengths, self.weights, *made):
            if tensor is not None:
                tensor.record_stream(stream)
        for group in self.groups:
            group.record_stream(stream)


@dataclass
class GroupIds:
    """The ids of a batch that belong to one group of tables: they lie one after another."""

    replicas: GroupReplicas
    """The replicas that the batch is routed by."""
    start: int
    """The index of the group's first id among those of the batch."""
    first_feature: int
    """The index of the group's first feature among those of the batch."""
    segments: Segments

    @property
    def span(self) -> slice:
        """The ids of the batch that are the group's."""
        return slice(self.start, self.start + sum(self.segments.lengths))

    def route(self, ids: Tensor) -> RoutedIds:
        """Find the rows of the group, from the `ids` [N] int64 of the batch."""
        return self.replicas.router.route(ids[self.span], self.segments)


@dataclass
class RoutedGroup(GroupIds, Multistreamable):
    """The ids of one group of tables, as they are routed, and what came of them since."""

    routed: RoutedIds
    home_ids: CollectiveSequence[HomeIds]
    """The ids that are sent home, known once a node that coalesces them has agreed on them."""
    asked: AskedIds | None
    """The ids whose rows this rank asks of its node; None where the tier `per_node` is empty."""
    answer: GroupAnswer | None = None
    """Set once the ids have been exchanged."""
    node_rows: Pending | None = None
    """[u, D]: the rows that this rank asked of its node."""
    replicated_rows: Tensor | None = None
    """[at least count, D] by position: the rows of the tier `replicated` on this rank, as they were
    looked up. Before they are waited for, somebody may ask for the state dict, and then the tier's
    rows are at home."""
    rows_before: Tensor | None = None
    """[n, D]: a copy of the rows of the ids that the tier `replicated` has; made where a backward
    may change them, or is about to, before they are waited for."""
    hot: bool = False
    """Whether all ids of the batch, on every rank, are of the tier `replicated`."""

    @classmethod
    def of(
        cls, own: GroupIds, ids: Tensor, routed: RoutedIds, nodes: Nodes, *, hot: bool = False
    ) -> RoutedGroup:
        """The `own` ids of a group, which are `routed` already; those of the batch's `ids` [N]
        int64 that miss begin to travel home."""
        replicas, segments = own.replicas, own.segments
        home_ids = find_home_ids(replicas.group, ids[own.span], routed, segments, nodes, hot=hot)
        layout = replicas.per_node_layout
        asked = None
        if layout.count and not hot:
            asked = AskedIds.of(routed.per_node.positions, layout)
        return cls(
            replicas=replicas,
            start=own.start,
            first_feature=own.first_feature,
            segments=segments,
            routed=routed,
            home_ids=CollectiveSequence(home_ids),
            asked=asked,
            hot=hot,
        )

    @cached_property
    def addresses(self) -> Tensor:
        """[n] int32 or int64: the addresses of the ids that the tier `replicated` has."""
        return self.replicas.replicated_layout.address(self.routed.replicated.positions)

    def request(self, nodes: Nodes) -> GroupRequest:
        """Ask the node for rows of the tier `per_node`, and find out which rows all ranks touch."""
        return GroupRequest(self.replicas, self.addresses, self.asked, nodes, hot=self.hot)

    def look_up(self, answer: GroupAnswer, nodes: Nodes, *, before_backward: bool) -> None:
        """Look rows up in the replicas as they are now, and send the node's ranks those that they
        asked of this one. `before_backward` of another batch, copies of those of the tier
        `replicated` are kept."""
        self.answer = answer
        if (tier := self.replicas.replicated_tier) is not None:
            self.replicated_rows = tier.rows
            if before_backward:
                self.keep_rows()
        if answer.exchange is not None:
            assert self.replicas.per_node_tier is not None
            rows = self.replicas.per_node_tier.share.rows.index_select(0, answer.exchange.ids)
            self.node_rows = answer.exchange.rows_to_askers(rows, nodes.node)
            if not rows.is_cuda:
                # Its last collective has the time till backward. On CUDA the processor would wait.
                assert answer.touched_by_node is not None
                answer.touched_by_node.advance()

    @property
    def replicated_source(self) -> tuple[Tensor | None, Tensor | None]:
        """The rows of the tier `replicated` as they were looked up, and which of them each id of
        the tier has; None where the i-th has row i."""
        if self.rows_before is not None:
            return self.rows_before, None
        return self.replicated_rows, self.routed.replicated.positions

    def keep_rows(self) -> None:
        """Keep the rows of the tier `replicated` that are looked up: they are about to change."""
        if self.replicated_rows is not None and self.rows_before is None:
            positions = self.routed.replicated.positions
            self.rows_before = self.replicated_rows.index_select(0, positions)

    def record_stream(self, stream: torch.Stream) -> None:
        tensors = [
            self.routed.missed,
            *self.routed.replicated,
            *self.routed.per_node,
            self.addresses,
        ]
        if self.asked is not None:
            tensors += [self.asked.ids, self.asked.counts, self.asked.inverse]
        if self.rows_before is not None:
            tensors.append(self.rows_before)
        for tensor in tensors:
            tensor.record_stream(stream)
        if self.home_ids.done:
            self.home_ids.result.record_stream(stream)


def begins(bags: Tensor, count: int) -> Tensor:
    """[count + 1]: where each of `count` bags begins among the ids' `bags` [n], which ascend, and
    where the last one ends."""
    if bags.is_cuda:  # bincount would have the processor wait
        return torch.searchsorted(bags, torch.arange(count + 1, device=bags.device))
    ends = torch.bincount(bags, minlength=count).cumsum(0)
    return torch.cat([ends.new_zeros(1), ends])


def check_hot(batch: RoutedBatch, features: Sequence[TableFeature]) -> None:
    """Refuse a batch that is marked hot and has an id that is not replicated on every rank: that
    id would be looked up nowhere.

    This runs before the batch's first collective, but on this rank alone: the others wait for it
    until it ends.
    """
    outside = [
        at[:1] + group.start
        for group in batch.groups
        for at in (group.routed.missed, group.routed.per_node.at)
    ]
    numbers = [int(at) for at in outside if len(at)]
    if batch.num_tiered < len(batch.ids):
        numbers.append(batch.num_tiered)
    if not numbers:
        return
    first = min(numbers)
    ends = np.fromiter(accumulate(batch.length_per_feature), np.int64)
    feature = features[int(np.searchsorted(ends, first, side="right"))]
    raise DataError(
        f"a batch is marked hot, but id {int(batch.ids[first])} of table {feature.table!r} "
        f"(feature {feature.feature!r}) has no replica on every rank. Mark batches by the tier "
        "plan that the model was sharded with, after every transform of ids."
    )
