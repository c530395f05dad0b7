"""Collectives one after another, each sent on its way once the one before has arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import Generic, TypeAlias, TypeVar

from torch import Tensor

from recd_plugins.tiers.nodes import Arriving

__all__ = ["Errand", "Turns", "in_flight"]

T = TypeVar("T")

Turns: TypeAlias = Generator[Arriving, Tensor, T]
"""Yields what is on its way, takes what has arrived, returns what came of it."""


class Errand(Generic[T]):
    """Runs turns, the first at once. In between its owner does something else.

    Every rank of a group must advance its errands in one order, for they exchange.
    """

    def __init__(self, turns: Turns[T]) -> None:
        self._turns = turns
        self.arriving: Arriving | None = None
        """What it waits for."""
        self._results: list[T] = []
        self._take(None)

    @property
    def done(self) -> bool:
        return self.arriving is None

    def advance(self) -> None:
        """Wait for what is on its way, and send what comes next; nothing once it is done."""
        if self.arriving is not None:
            self._take(self.arriving.wait())

    def finish(self) -> T:
        while not self.done:
            self.advance()
        return self._results[0]

    def _take(self, arrived: Tensor | None) -> None:
        try:
            self.arriving = next(self._turns) if arrived is None else self._turns.send(arrived)
        except StopIteration as end:
            self.arriving = None
            self._results.append(end.value)


def in_flight(errands: Iterable[Turns[None]], most: int) -> Turns[None]:
    """Run errands, `most` at a time and each its turns in order: the same on every rank."""
    under_way: deque[Errand[None]] = deque()

    def advance_oldest() -> Turns[None]:
        oldest = under_way.popleft()
        if oldest.arriving is not None:
            yield oldest.arriving
            oldest.advance()
            under_way.append(oldest)

    for turns in errands:
        while len(under_way) >= most:
            yield from advance_oldest()
        under_way.append(Errand(turns))
    while under_way:
        yield from advance_oldest()
