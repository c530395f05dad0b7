"""What a group's tiers find out while TorchRec sends ids: the same waits, other collectives.

TorchRec joins the exchanges of splits of all its modules in one, over one group. A request is
no part of that: it is a plain awaitable among them, which runs its own errands.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.distributed.types import Awaitable
from torchrec.streamable import Multistreamable

from recd_plugins.tiers.errand import CollectiveSequence
from recd_plugins.tiers.ids.exchange import AskedIds, NodeExchange, ask_node
from recd_plugins.tiers.nodes import Nodes
from recd_plugins.tiers.replicas import GroupReplicas
from recd_plugins.tiers.updates.touched import Touched, touched_everywhere, touched_in_nodes

__all__ = ["GroupAnswer", "GroupRequest"]


@dataclass(frozen=True)
class GroupAnswer(Multistreamable):
    """What a rank knows of a batch before it is computed; parts are there if their tier is."""

    ids: NodeExchange | None
    """What the node asks of this rank."""
    touched: CollectiveSequence[Touched] | None
    """Which rows of the all-ranks tier the batch touches, on its way: backward needs it."""
    touched_in_nodes: CollectiveSequence[Tensor] | None
    """Of this rank's share of the per-node tier, likewise."""

    def record_stream(self, stream: torch.Stream) -> None:
        if self.ids is not None:
            self.ids.record_stream(stream)


class GroupRequest(Awaitable[Awaitable[GroupAnswer]]):
    """The first turn of a group's errands. Every rank makes them, in one order."""

    def __init__(
        self,
        replicas: GroupReplicas,
        positions: Tensor,
        asked: AskedIds | None,
        nodes: Nodes,
        *,
        hot: bool = False,
    ) -> None:
        """For a batch that touches `positions` of the all-ranks tier; a hot one, those alone."""
        super().__init__()
        self._replicas, self._nodes = replicas, nodes
        self._ids = None if asked is None else CollectiveSequence(ask_node(asked, nodes.node))
        self._touched = None
        layout = replicas.replicated_layout
        if layout.count:
            mine = _marked(layout.place(positions), layout.num_places)
            mine = mine.view(layout.ranks_per_node, layout.share_rows)
            self._touched = CollectiveSequence(touched_everywhere(mine, nodes, hot=hot))

    def _wait_impl(self) -> Awaitable[GroupAnswer]:
        self._advance()
        return _PendingAnswer(self)

    def _advance(self) -> None:
        for errand in (self._ids, self._touched):
            if errand is not None:
                errand.advance()

    def _answer(self) -> GroupAnswer:
        self._advance()
        if self._ids is None:
            return GroupAnswer(None, self._touched, None)
        ids = self._ids.finish()
        mine = _marked(ids.ids, self._replicas.per_node_layout.share_rows)
        return GroupAnswer(
            ids, self._touched, CollectiveSequence(touched_in_nodes(mine, self._nodes))
        )


class _PendingAnswer(Awaitable[GroupAnswer]):
    """The second turn, once TorchRec has its splits."""

    def __init__(self, request: GroupRequest) -> None:
        super().__init__()
        self._request = request

    def _wait_impl(self) -> GroupAnswer:
        return self._request._answer()


def _marked(places: Tensor, count: int) -> Tensor:
    """[count] bool: which places are among `places`."""
    marked = torch.zeros(count, dtype=torch.bool, device=places.device)
    marked[places] = True
    return marked
