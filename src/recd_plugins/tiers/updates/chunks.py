"""The rows that a step touches, cut into chunks that all ranks of a node take in turn."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from recd_plugins.tiers.updates.entries import Entries
from recd_plugins.tiers.updates.touched import Touched

__all__ = ["Chunks"]


class Chunks:
    """Chunk j: of each share the rows from the j · `width`-th on that any rank touched.

    A rank has gradients for some of them; which, its peers know by the bits they exchanged, so
    that neither ids nor counts travel with the gradients.
    """

    def __init__(self, touched: Touched, own: int, width: int) -> None:
        """For the rank whose share is number `own`."""
        self._touched = touched
        self._own = own
        self._width = width
        self._union = [share.nonzero().squeeze(1) for share in touched.anywhere]
        self.count = -(-max(map(len, self._union)) // width)
        # Of this rank's rows in each share, how many come before each chunk: [W, count + 1].
        mine = [
            torch.bincount((order[rows] - 1) // width, minlength=self.count).cumsum(0)
            for order, rows in zip(
                touched.anywhere.cumsum(1, dtype=torch.int32), touched.mine, strict=True
            )
        ]
        self._before = torch.nn.functional.pad(torch.stack(mine), (1, 0)).tolist()

    def rows(self, number: int, share: int | None = None) -> Tensor:
        """The rows of a chunk in one share, by default this rank's own."""
        union: Tensor = self._union[self._own if share is None else share]
        return union[number * self._width : (number + 1) * self._width]

    def sends(self, number: int) -> list[int]:
        """How many gradients of a chunk this rank has for each share."""
        return [before[number + 1] - before[number] for before in self._before]

    def receives(self, number: int) -> tuple[list[int], Tensor]:
        """How many gradients each rank has for this one's share, and [r] the row of each among
        the chunk's."""
        touched = self._touched.by_rank[:, self.rows(number)]
        counts: list[int] = touched.sum(1).tolist()
        return counts, touched.nonzero()[:, 1]

    def entries(self, gradients: Entries) -> Iterator[Entries]:
        """Of each chunk, counted by the rows that this rank has in it: share by share."""
        # This rank's rows in order, share by share; a chunk has a run of them in each share.
        order = self._touched.mine.flatten().cumsum(0, dtype=torch.int32) - 1
        ranked = gradients.at(order[gradients.places])
        del order
        if self.count <= 1:
            yield from [ranked] * self.count
            return
        ranked = ranked.sorted()
        starts = [0]
        for before in self._before:
            starts.append(starts[-1] + before[-1])
        for number in range(self.count):
            taken = 0
            parts = []
            for start, before in zip(starts, self._before, strict=False):
                first, last = start + before[number], start + before[number + 1]
                parts.append(ranked.between(first, last, taken))
                taken += last - first
            yield Entries.joined(parts)
