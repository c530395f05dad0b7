"""TorchRec's exchange of ids, which waits until the ranks of a node have coalesced them. Meanwhile
another batch is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torchrec.distributed.embedding_sharding import (
    FusedKJTListSplitsAwaitable,
    KJTListAwaitable,
    KJTListSplitsAwaitable,
    KJTSplitsAllToAllMeta,
)
from torchrec.distributed.types import Awaitable
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.tiers.collectives import CollectiveSequence
from recd_plugins.tiers.exchange.home_ids import HomeIds

__all__ = ["DeferredExchange", "DeferredSplits", "Sent"]

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
