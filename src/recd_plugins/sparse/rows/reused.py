"""Memory that is handed out again: the kernel clears each page that it gives, and of a reader's
processor time a fifth was the kernel's."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["SMALL", "ReusedMemory"]

Numbers: TypeAlias = npt.NDArray[Any]

SMALL = 1 << 18
"""Bytes: what is smaller, malloc has again by itself."""
SPARE = 8
"""An eighth more than was asked for is taken, so that what is wanted next fits too."""
LOOK = 64
"""Blocks that are looked at for one that nobody holds."""

_one = [np.empty(0, np.uint8)]
ALONE = sys.getrefcount(_one[0])
"""What is counted of a block that nobody holds but the list that it is in."""


class ReusedMemory:
    """Arrays on blocks of memory, each of which is handed out anew once nobody holds it.

    Whoever holds an array, a tensor on it, or a part of either, holds the block. Blocks that are
    given back come first that were handed out first, as batches are. Any thread may ask.
    """

    def __init__(self) -> None:
        self._blocks: deque[Numbers] = deque()
        self._lock = threading.Lock()

    def empty(self, count: int, kind: type[np.generic]) -> Numbers:
        """[count] numbers of a kind, whatever was there before."""
        size = int(count) * np.dtype(kind).itemsize
        if size < SMALL:
            return np.empty(count, kind)
        with self._lock:
            block = self._unheld(size)
            if block is None:
                block = np.empty(size + size // SPARE, np.uint8)
            self._blocks.append(block)
            return block[:size].view(kind)

    def _unheld(self, size: int) -> Numbers | None:
        """A block of so many bytes; of those that nobody holds one goes if it is smaller, so that a
        larger one takes its place."""
        for _ in range(min(LOOK, len(self._blocks))):
            if sys.getrefcount(self._blocks[0]) == ALONE:
                block = self._blocks.popleft()
                return block if len(block) >= size else None
            self._blocks.rotate(-1)
        return None
