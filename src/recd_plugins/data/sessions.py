"""Sessions in an order of rows: runs of one session move as one, and fill batches whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Sessions", "pack", "rows_of", "runs_of"]

Sessions = Literal["split", "together", "whole"]
Sizes = npt.NDArray[np.int64]
Spans = tuple[Sizes, Sizes]
"""Where each span of rows begins, and how many they are."""


def runs_of(columns: Iterable[pa.ChunkedArray]) -> Sizes:
    """[R] rows of each run: consecutive rows of one session, in columns laid end to end.

    A row without a session is a run of its own.
    """
    chunks = [chunk for column in columns for chunk in column.chunks]
    sessions = pa.concat_arrays(chunks)
    changes = pc.not_equal(sessions[1:], sessions[:-1]).fill_null(True)
    starts = 1 + np.flatnonzero(changes.to_numpy(zero_copy_only=False))
    return np.diff(starts, prepend=0, append=len(sessions))


def pack(begins: Sizes, sizes: Sizes, rooms: Sequence[int]) -> Spans:
    """Runs into batches that have `rooms` for rows, filled one after the other, exactly.

    The next run goes into the batch where it fits. Where it does not, the first later one
    that does goes before it; where none does, it is cut, and its rest is the next. So is at
    once a run that no room holds, else all of those would come last. All runs together must
    fill all rooms.
    """
    widest = max(rooms)
    begins, left, head = begins.copy(), sizes.copy(), 0
    taken: list[Spans] = []
    for room in rooms:
        while room:
            ends = left[head : head + room + 1].cumsum()  # runs that went before have 0 left
            fitting = int(np.searchsorted(ends, room, side="right"))
            if fitting:
                taken.append((begins[head : head + fitting], left[head : head + fitting]))
                room -= int(ends[fitting - 1])
                head += fitting
                continue
            run = head if left[head] > widest else _first_fitting(left, head, room)
            size = min(room, int(left[run]))
            taken.append((begins[run : run + 1].copy(), np.array([size])))
            begins[run] += size
            left[run] -= size
            room -= size
    starts, lengths = (np.concatenate(part) for part in zip(*taken, strict=True))
    return starts[lengths > 0], lengths[lengths > 0]


def _first_fitting(left: Sizes, head: int, room: int) -> int:
    """The first run from `head` on with at most `room` rows left, and one at least; or `head`."""
    rest = left[head:]
    return head + int(((rest <= room) & (rest > 0)).argmax())  # all False: 0


def rows_of(spans: Spans) -> Sizes:
    """[n] the rows of the spans, one span after the other."""
    begins, sizes = spans
    ends = sizes.cumsum()
    rows: Sizes = np.repeat(begins - (ends - sizes), sizes)
    rows += np.arange(len(rows))
    return rows
