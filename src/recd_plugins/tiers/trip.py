"""One batch on its way through the tiers: where each id goes, and what comes back for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torchrec.streamable import Multistreamable

from recd_plugins.tiers.errand import CollectiveSequence
from recd_plugins.tiers.ids.exchange import AskedIds
from recd_plugins.tiers.ids.passage import HomeIds
from recd_plugins.tiers.ids.request import GroupAnswer, GroupRequest
from recd_plugins.tiers.nodes import Nodes, Pending
from recd_plugins.tiers.replicas import GroupReplicas, Replicas
from recd_plugins.tiers.router import RoutedIds, Segments
from recd_plugins.tiers.updates.entries import Entries, HotGradients

__all__ = ["RoutedBatch", "RoutedGroup"]


@dataclass
class RoutedGroup(Multistreamable):
    """The ids of one group of tables, which lie together among those of the batch."""

    replicas: GroupReplicas
    start: int
    """Where the group's ids begin among those of the batch."""
    segments: Segments
    routed: RoutedIds
    passing: CollectiveSequence[HomeIds]
    asked: AskedIds | None
    """Of this rank's node; none where that tier is empty."""
    answer: GroupAnswer | None = None
    """What is known once the ids have been exchanged."""
    rows: Pending | None = None
    """[u, D]: the rows that were asked for, on their way."""
    hot: bool = False
    """Whether all ids of the batch, on every rank, are of the all-ranks tier."""

    @classmethod
    def of(
        cls,
        replicas: GroupReplicas,
        start: int,
        ids: Tensor,
        segments: Segments,
        nodes: Nodes,
        *,
        hot: bool = False,
    ) -> RoutedGroup:
        """Of a group's `ids` [N] int64."""
        routed = replicas.router.route(ids, segments)
        passed = routed.passed
        passing = CollectiveSequence(
            HomeIds.of(replicas.group, ids, passed, segments, nodes, hot=hot)
        )
        layout = replicas.per_node_layout
        asked = None
        if layout.count and not hot:
            asked = AskedIds.of(routed.per_node.positions, layout)
        return cls(replicas, start, segments, routed, passing, asked, hot=hot)

    @property
    def passage(self) -> HomeIds:
        """What passes; known once TorchRec has been sent it."""
        return self.passing.finish()

    def request(self, nodes: Nodes) -> GroupRequest:
        """Ask the node for rows of its tier, and find out what all ranks touch."""
        positions = self.routed.replicated.positions
        return GroupRequest(self.replicas, positions, self.asked, nodes, hot=self.hot)

    def arrive(self, answer: GroupAnswer, nodes: Nodes) -> None:
        """Send the node the rows that it asked of this rank."""
        self.answer = answer
        if answer.ids is not None:
            assert self.replicas.per_node_tier is not None
            rows = self.replicas.per_node_tier.share.rows.index_select(0, answer.ids.ids)
            self.rows = answer.ids.send_back(rows, nodes.node)

    def no_gradients(self) -> HotGradients:
        """Of an output that no loss depends on."""
        like = self.replicas.group.like.float()
        asked = None if self.asked is None else like.new_zeros(len(self.asked.ids), like.shape[1])
        return HotGradients(Entries(self.routed.passed[:0], like), asked)

    def record_stream(self, stream: torch.Stream) -> None:
        tensors = [self.routed.passed, *self.routed.replicated, *self.routed.per_node]
        if self.asked is not None:
            tensors += [self.asked.ids, self.asked.counts, self.asked.inverse]
        for tensor in tensors:
            tensor.record_stream(stream)
        self.passage.record_stream(stream)


@dataclass
class RoutedBatch(Multistreamable):
    """The ids of one batch, which keep the version of the replicas that they were routed by."""

    replicas: Replicas
    groups: list[RoutedGroup]
    ids: Tensor
    """[N] int64: the ids of all slots, one slot after another."""
    lengths: Tensor
    """[S, B]: how many each sample has in each slot."""
    length_per_feature: list[int]
    weights: Tensor | None = None
    """[N] float32: of ids in weighted bags."""
    hot: bool = False
    """Whether no rank has an id that is not replicated on every rank: nothing is exchanged."""

    @property
    def known(self) -> bool:
        """Whether it is known what passes, without asking the node."""
        return all(group.passing.done for group in self.groups)

    @cached_property
    def bags(self) -> Tensor:
        """[N] int64: id i is in bag s · B + b, of slot s and sample b."""
        lengths = self.lengths.flatten().long()
        return torch.repeat_interleave(lengths, output_size=len(self.ids))

    def bag_sizes(self) -> Tensor:
        """[S, B]: the ids of each bag, or the sum of their weights."""
        if self.weights is None:
            return self.lengths
        sums = self.weights.new_zeros(self.lengths.numel()).index_add_(0, self.bags, self.weights)
        return sums.view_as(self.lengths)

    def passing(self) -> Tensor:
        """[n] int64, ascending: which of the ids pass."""
        others = torch.arange(self.num_tiered, len(self.ids), device=self.ids.device)
        return torch.cat([*(group.routed.passed + group.start for group in self.groups), others])

    def passing_lengths(self) -> Tensor:
        """[S, B] int32: how many of each bag pass."""
        counts = torch.bincount(self.bags[self.passing()], minlength=self.lengths.numel())
        return counts.view_as(self.lengths).to(torch.int32)

    @property
    def num_tiered(self) -> int:
        """The ids of tables with tiers; those of others come after them."""
        return sum(sum(group.segments.lengths) for group in self.groups)

    def record_stream(self, stream: torch.Stream) -> None:
        self.ids.record_stream(stream)
        self.lengths.record_stream(stream)
        if self.weights is not None:
            self.weights.record_stream(stream)
        for group in self.groups:
            group.record_stream(stream)
