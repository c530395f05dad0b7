"""One batch on its way through the tiers: where each id goes, and what comes back for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.streamable import Multistreamable

from recd_plugins.tiers.exchange import Asked, NodeIds
from recd_plugins.tiers.merge import HotGradients
from recd_plugins.tiers.nodes import Arriving, Nodes
from recd_plugins.tiers.passage import Passage
from recd_plugins.tiers.replicas import GroupReplicas, Replicas
from recd_plugins.tiers.router import Routed, Segments

__all__ = ["GroupTrip", "Trip"]


@dataclass
class GroupTrip(Multistreamable):
    """The ids of one group of tables."""

    replicas: GroupReplicas
    segments: Segments
    routed: Routed
    passage: Passage
    asked: Asked | None
    """Of this rank's node; none where that tier is empty."""
    answered: NodeIds | None = None
    """What the node asked of this rank."""
    rows: Arriving | None = None
    """[u, D]: the rows that were asked for, on their way."""

    @classmethod
    def of(cls, replicas: GroupReplicas, ids: Tensor, segments: Segments) -> GroupTrip:
        """Of a group's `ids` [N] int64."""
        routed = replicas.router.route(ids, segments)
        layout = replicas.per_node_layout
        asked = Asked.of(routed.per_node.positions, layout) if layout.count else None
        passage = Passage.of(replicas.group, ids, routed.passed, segments)
        return cls(replicas, segments, routed, passage, asked)

    def answer(self, asked: NodeIds, nodes: Nodes) -> None:
        """Send the node the rows that it asked of this rank."""
        assert self.replicas.per_node_replica is not None
        rows = self.replicas.per_node_replica.share.rows.index_select(0, asked.ids)
        self.answered = asked
        self.rows = asked.send_back(rows, nodes.node)

    def no_gradients(self) -> HotGradients:
        """Of an output that no loss depends on."""
        width = self.replicas.group.like.shape[1]
        counts = sum(self.segments.lengths), 0 if self.asked is None else len(self.asked.ids)
        zeros = [torch.zeros(n, width, device=self.routed.passed.device) for n in counts]
        return HotGradients(*zeros)

    def record_stream(self, stream: torch.Stream) -> None:
        tensors = [self.routed.passed, *self.routed.replicated, *self.routed.per_node]
        tensors.append(self.passage.ids)
        if self.passage.inverse is not None:
            tensors.append(self.passage.inverse)
        if self.asked is not None:
            tensors += [self.asked.ids, self.asked.counts, self.asked.inverse]
        for tensor in tensors:
            tensor.record_stream(stream)


@dataclass
class Trip(Multistreamable):
    """The ids of one batch, which keep the version of the replicas that they were routed by."""

    replicas: Replicas
    groups: list[GroupTrip]
    ids: Tensor
    """[N] int64: the ids of all slots, one slot after another."""
    lengths: Tensor
    """[S, B]: how many each sample has in each slot."""
    length_per_slot: list[int]

    def record_stream(self, stream: torch.Stream) -> None:
        self.ids.record_stream(stream)
        self.lengths.record_stream(stream)
        for group in self.groups:
            group.record_stream(stream)
