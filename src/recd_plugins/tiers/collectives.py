"""Collectives that ranks run one after another, each begun once the one before has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from recd_plugins.tiers.peers import Pending

__all__ = ["CollectiveSequence", "Collectives", "in_flight"]

T = TypeVar("T")

Collectives: TypeAlias = Generator[Pending, Tensor, T]
"""A generator yields the collective that it has begun, is sent what that one has filled, and
returns what came of them all."""


class CollectiveSequence(Generic[T]):
    """Runs collectives one after another, the first at once. In between its owner does other work.

    Every rank of a group must advance its sequences in one order, for their collectives must meet.
    """

    def __init__(self, collectives: Collectives[T]) -> None:
        self._collectives = collectives
        self.pending: Pending | None = None
        """The collective that is under way."""
        self._results: list[T] = []
        self._resume(None)

    @property
    def done(self) -> bool:
        return self.pending is None

    @property
    def result(self) -> T:
        """The result of a sequence that is done."""
        assert self.done
        return self._results[0]

    def advance(self) -> None:
        """Wait for the collective under way, and begin the next; nothing once it is done."""
        if self.pending is not None:
            self._resume(self.pending.wait())

    def finish(self) -> T:
        """Run the collectives that are left."""
        while not self.done:
            self.advance()
        return self.result

    def _resume(self, filled: Tensor | None) -> None:
        try:
            self.pending = (
                next(self._collectives) if filled is None else self._collectives.send(filled)
            )
        except StopIteration as end:
            self.pending = None
            self._results.append(end.value)


def in_flight(sequences: Iterable[Collectives[None]], most: int) -> Collectives[None]:
    """Run sequences, `most` at a time, and advance the oldest: in the same order on every rank."""
    under_way: deque[CollectiveSequence[None]] = deque()
    nothing = torch.empty(0, device="cpu")

    def advance_oldest() -> Collectives[None]:
        oldest = under_way.popleft()
        if oldest.pending is not None:
            yield Pending(nothing, None)  # not its tensor, which its owner may be done with first
            oldest.advance()
            under_way.append(oldest)

    for collectives in sequences:
        while len(under_way) >= most:
            yield from advance_oldest()
        under_way.append(CollectiveSequence(collectives))
    while under_way:
        yield from advance_oldest()
