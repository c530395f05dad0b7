"""Lists that are padded to one length with a value that is not an element, as 0 or 2^31 - 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["LARGEST", "filling"]

LARGEST = frozenset(2**bits - 1 for bits in (31, 32, 63, 64))
"""The largest integers of their types, which are hardly ids."""
FEWEST_RUNS = 20
"""If at least this many lists end in several of a value, it is not by chance."""
FEWEST_LENGTHS = 3
"""Without the value, such lists have at least this many different lengths."""


def filling(elements: pa.ChunkedArray, width: int | None) -> int | str | None:
    """The value with which lists that hold these elements, none of them null, are padded; None if
    there is none.

    Among integers that is -1, if it is the least. In lists of one `width` it is 0 or less, a
    largest integer, or the most frequent text, if it stands at one end of the lists alone, in some
    often and in others not: an id would stand between others too.
    """
    kind = elements.type
    candidates: list[Any] = []
    if pa.types.is_integer(kind):
        ends = pc.min_max(elements).as_py()
        if ends["min"] == -1:
            return -1
        candidates += [ends["min"]] if ends["min"] <= 0 else []
        candidates += [ends["max"]] if ends["max"] in LARGEST else []
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        counted = pc.value_counts(elements.combine_chunks())
        most = counted.field("counts").to_numpy().argmax()
        candidates += [counted.field("values")[int(most)].as_py()]
    if width is None or width < 2:
        return None
    return next((one for one in candidates if _is_at_one_end(elements, one, width)), None)


def _is_at_one_end(elements: pa.ChunkedArray, value: Any, width: int) -> bool:
    found = pc.equal(elements, pa.scalar(value, elements.type)).to_numpy().reshape(-1, width)
    counts = found.sum(axis=1)
    if (counts >= 2).sum() < FEWEST_RUNS or len(np.unique(counts)) < FEWEST_LENGTHS:
        return False
    run = np.arange(width) < counts[:, None]
    at_one_end = (found == run).all() or (found[:, ::-1] == run).all()
    return bool(at_one_end) and not _add_up(elements, width)


def _add_up(elements: pa.ChunkedArray, width: int) -> bool:
    """Whether numbers never fall in any list, or never rise, as counts that add up, from 0 on."""
    if not pa.types.is_integer(elements.type):
        return False
    numbers: npt.NDArray[Any] = elements.to_numpy().reshape(-1, width)
    before, after = numbers[:, :-1], numbers[:, 1:]
    return bool((before <= after).all() or (before >= after).all())
