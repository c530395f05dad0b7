"""What a rank asks of the others about a group's ids before the batch is computed: which rows of
the tier `per_node` its node is to send, and which replicas all ranks touch."""

from __future__ import annotations

from dataclasses import dataclass
from threading import current_thread

import torch
from torch import Tensor
from torchrec.distributed.types import Awaitable
from torchrec.streamable import Multistreamable

from recd_plugins.errors import CapabilityError
from recd_plugins.tiers.collectives import CollectiveSequence
from recd_plugins.tiers.exchange.node_exchange import AskedIds, NodeExchange, ask_node
from recd_plugins.tiers.gradients.touched import (
    Touched,
    TouchedByNode,
    exchange_touched,
    exchange_touched_by_node,
    marked,
)
from recd_plugins.tiers.peers import Nodes
from recd_plugins.tiers.replicas.group_replicas import GroupReplicas

__all__ = ["GroupAnswer", "GroupRequest"]


@dataclass(frozen=True)
class GroupAnswer(Multistreamable):
    """What a rank knows of a group's ids before the batch is computed; None for a tier that is
    empty."""

    exchange: NodeExchange | None
    """The rows of the tier `per_node` that the node's ranks ask each other for."""
    touched: CollectiveSequence[Touched] | None
    """The rows of the tier `replicated` that the batch touches. On the CPU it may run until
    backward."""
    touched_by_node: CollectiveSequence[TouchedByNode] | None
    """The same of this rank's share of the tier `per_node`."""
    stream: torch.cuda.Stream | None
    """The stream of CUDA on which they began."""

    def count_touched(self) -> None:
        """On CUDA, learn which rows are touched before backward, in which the processor would wait
        until the device has come there: on the stream on which ids are exchanged, which no batch is
        computed on."""
        if self.stream is None:
            return
        with torch.cuda.stream(self.stream):
            for sequence in (self.touched, self.touched_by_node):
                if sequence is not None:
                    sequence.finish()
        torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    def record_stream(self, stream: torch.Stream) -> None:
        if self.exchange is not None:
            self.exchange.record_stream(stream)


class GroupRequest(Awaitable[Awaitable[GroupAnswer]]):
    """Asks for a group's answer, by collectives that run in the same waits as TorchRec's own:

    made, in `input_dist`         the number of ids goes to each rank of the node
    waited for, as splits are     the ids go
    waited for again, as ids are  they have come; which of these rows each node touched goes out

    Beside them travel the bits of the rows that are touched on every rank (`exchange_touched`);
    their last wait may be in backward, or on CUDA as the batch is computed.

    TorchRec joins the exchanges of splits of all its modules in one, over one group of ranks. A
    request stays out of that: it is a plain awaitable among them. Every rank makes the requests,
    and waits for them, in the same order, which nobody can promise of several threads.
    """

    def __init__(
        self,
        replicas: GroupReplicas,
        addresses: Tensor,
        asked: AskedIds | None,
        nodes: Nodes,
        *,
        hot: bool,
    ) -> None:
        """The batch touches these `addresses` of the tier `replicated`, and if it is hot, no
        others."""
        super().__init__()
        self._replicas, self._nodes = replicas, nodes
        self._thread = current_thread()
        self._exchange = None if asked is None else CollectiveSequence(ask_node(asked, nodes.node))
        self._touched = None
        layout = replicas.replicated_layout
        if layout.count:
            mine = marked(addresses, layout.num_addresses)
            mine = mine.view(layout.shares, layout.share_rows)
            self._touched = CollectiveSequence(exchange_touched(mine, nodes, hot=hot))

    def advance(self) -> None:
        under_way = [one for one in (self._exchange, self._touched) if one is not None]
        if current_thread() is not self._thread and not all(one.done for one in under_way):
            raise CapabilityError(
                f"tiers: thread {self._thread.name!r} of the trainer or its pipeline began an "
                f"exchange of ids, and thread {current_thread().name!r} waits for it. Where rows "
                "have replicas this wait begins collectives; beside those of another thread they "
                "would come in another order on each rank, and ranks would hang. Wait in the "
                "thread that began it, as TorchRec's own pipelines do, or plan no replicas."
            )
        for sequence in under_way:
            sequence.advance()

    def answer(self) -> GroupAnswer:
        """The second wait, once TorchRec has its splits."""
        self.advance()
        device = self._replicas.group.like.device
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        if self._exchange is None:
            return GroupAnswer(None, self._touched, None, stream)
        exchange = self._exchange.finish()
        size = self._replicas.per_node_layout.share_rows
        by_node = CollectiveSequence(exchange_touched_by_node(exchange.ids, size, self._nodes))
        return GroupAnswer(exchange, self._touched, by_node, stream)

    def _wait_impl(self) -> Awaitable[GroupAnswer]:
        self.advance()
        return _PendingAnswer(self)


class _PendingAnswer(Awaitable[GroupAnswer]):
    def __init__(self, request: GroupRequest) -> None:
        super().__init__()
        self._request = request

    def _wait_impl(self) -> GroupAnswer:
        return self._request.answer()
