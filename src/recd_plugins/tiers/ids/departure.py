"""TorchRec's exchange of ids that the node has yet to agree on, beside the batch before."""

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

from recd_plugins.tiers.errand import CollectiveSequence
from recd_plugins.tiers.ids.passage import HomeIds

__all__ = ["DeferredExchange", "DeferredSplits"]

Sent = Sequence[Awaitable[KeyedJaggedTensor]]


class DeferredExchange:
    """First the node's turns, then TorchRec's `send`.

    Under a pipeline another batch is computed meanwhile, which advances this one where the
    links have had time. Every rank does so at the same places, for each turn is an exchange.
    """

    def __init__(
        self,
        passing: Sequence[CollectiveSequence[HomeIds]],
        send: Callable[[], KJTListSplitsAwaitable[Any]],
    ) -> None:
        self._passing, self._send = passing, send
        self._splits: Callable[[], KJTListAwaitable] | None = None
        self._sent: Sent | None = None
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._stream = torch.cuda.current_stream() if cuda else None

    @property
    def begun(self) -> bool:
        """Whether TorchRec has been asked to send the ids."""
        return self._splits is not None

    def advance(self) -> None:
        """The next turn, if there is one before TorchRec's own."""
        with torch.cuda.stream(self._stream):
            for one in self._passing:
                one.advance()
            if all(one.done for one in self._passing):
                self._begin()

    def sent(self) -> Sent:
        """The ids on their way to their tables, for each way that TorchRec shards these."""
        if self._sent is None:
            for one in self._passing:
                one.finish()
            self._begin()
            assert self._splits is not None
            self._sent = self._splits().awaitables
        return self._sent

    def _begin(self) -> None:
        if self._splits is None:
            self._splits = _exchange(self._send())


class DeferredSplits(Awaitable[Awaitable[KeyedJaggedTensor]]):
    """One of the exchanges of a departure, as TorchRec waits for it."""

    def __init__(self, departure: DeferredExchange, number: int) -> None:
        super().__init__()
        self._departure, self._number = departure, number

    def _wait_impl(self) -> Awaitable[KeyedJaggedTensor]:
        return self._departure.sent()[self._number]


def _exchange(request: KJTListSplitsAwaitable[Any]) -> Callable[[], KJTListAwaitable]:
    """Splits on their way. Pipelines have TorchRec leave them to whoever fuses them."""
    fused = [one for one in request.awaitables if isinstance(one, KJTSplitsAllToAllMeta)]
    if not fused:
        return lambda: request.wait()
    splits = FusedKJTListSplitsAwaitable([request], [request.ctx], fused[0].pg)
    return lambda: splits.wait()[0]
