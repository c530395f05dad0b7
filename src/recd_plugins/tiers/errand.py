"""Collectives one after another, each sent on its way once the one before has arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import Generic, TypeAlias, TypeVar

from torch import Tensor

from recd_plugins.tiers.nodes import Pending

__all__ = ["CollectiveSequence", "Collectives", "in_flight"]

T = TypeVar("T")

Collectives: TypeAlias = Generator[Pending, Tensor, T]
"""Yields what is on its way, takes what has arrived, returns what came of it."""


class CollectiveSequence(Generic[T]):
    """Runs turns, the first at once. In between its owner does something else.

    Every rank of a group must advance its errands in one order, for they exchange.
    """

    def __init__(self, turns: Collectives[T]) -> None:
        self._turns = turns
        self.pending: Pending | None = None
        """What it waits for."""
        self._results: list[T] = []
        self._take(None)

    @property
    def done(self) -> bool:
        return self.pending is None

    def advance(self) -> None:
        """Wait for what is on its way, and send what comes next; nothing once it is done."""
        if self.pending is not None:
            self._take(self.pending.wait())

    def finish(self) -> T:
        while not self.done:
            self.advance()
        return self._results[0]

    def _take(self, arrived: Tensor | None) -> None:
        try:
            self.pending = next(self._turns) if arrived is None else self._turns.send(arrived)
        except StopIteration as end:
            self.pending = None
            self._results.append(end.value)


def in_flight(errands: Iterable[Collectives[None]], most: int) -> Collectives[None]:
    """Run errands, `most` at a time and each its turns in order: the same on every rank."""
    under_way: deque[CollectiveSequence[None]] = deque()

    def advance_oldest() -> Collectives[None]:
        oldest = under_way.popleft()
        if oldest.pending is not None:
            yield oldest.pending
            oldest.advance()
            under_way.append(oldest)

    for turns in errands:
        while len(under_way) >= most:
            yield from advance_oldest()
        under_way.append(CollectiveSequence(turns))
    while under_way:
        yield from advance_oldest()
