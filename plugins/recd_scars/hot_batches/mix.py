"""Which samples of a window go into which of its batches: pure, and alike wherever it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["I64", "Bools", "hot_places", "mixed", "most_hot"]

Bools: TypeAlias = npt.NDArray[np.bool_]
I64: TypeAlias = npt.NDArray[np.int64]


def most_hot(num_hot: int, sizes: Sequence[int]) -> int:
    """How many batches of a window `num_hot` samples fill, whichever of these sizes they are."""
    largest = np.sort(np.asarray(sizes, np.int64))[::-1].cumsum()
    return int(np.searchsorted(largest, num_hot, side="right"))


def hot_places(count: int, num_hot: int) -> list[bool]:
    """Which of a window's batches are hot: `num_hot` of them, spread evenly."""
    ends = [place * num_hot // count for place in range(count + 1)]
    return [ends[place + 1] > ends[place] for place in range(count)]


def mixed(hot: Bools, sizes: Sequence[int], num_hot: int) -> list[I64]:
    """The samples of each batch [size], ascending, every sample of the window [N] in one.

    `num_hot` batches, at `hot_places`, take hot samples alone, in their order; the others take
    what is left, hot ones among it, in the window's order. `num_hot` is at most `most_hot`.
    """
    places = hot_places(len(sizes), num_hot)
    taken = sum(size for size, place in zip(sizes, places, strict=True) if place)
    chosen = np.flatnonzero(hot)[:taken]
    left = np.ones(len(hot), np.bool_)
    left[chosen] = False
    sources = {True: chosen, False: np.flatnonzero(left)}
    at = {True: 0, False: 0}
    batches = []
    for size, place in zip(sizes, places, strict=True):
        batches.append(sources[place][at[place] : at[place] + size])
        at[place] += size
    return batches
