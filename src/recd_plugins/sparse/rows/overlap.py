"""Shifted rows: where one row ends as the next begins, both share those values.

Each row is laid over the longest suffix of its neighbour which is its own prefix (Knuth,
Morris and Pratt: linear, whatever the ids).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["Overlapped", "overlap_rows"]

I64: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.NDArray[Any]


class Overlapped(NamedTuple):
    """U rows over shared values."""

    values: Values
    """[K] the shared values."""
    rows: I64
    """[U, 2] each row's offset among the shared values, and its length."""


def overlap_rows(
    values: Values, starts: I64, lengths: I64, begins: npt.NDArray[np.bool_] | None = None
) -> Overlapped:
    """Lay rows `values[starts[u] : starts[u] + lengths[u]]`, u < U, over each other.

    Lists that grow at their end: row u + 1 is laid over the end of row u. Lists that grow at
    their front, newest first: row u over the end of row u + 1. All rows take the way that
    keeps fewer values. A row with `begins` [U] shares nothing with those before it.
    """
    if begins is None:
        begins = np.zeros(starts.size, np.bool_)
    matched = _matches(values, starts, lengths, begins)
    # Where half of the values are shared, lists grow at their end: no need to look further.
    if 2 * matched.sum() < lengths.sum():
        ends = np.append(begins[1:], True)[: begins.size]
        backward = _matches(values, starts[::-1], lengths[::-1], ends[::-1])
        if backward.sum() > matched.sum():
            shared, rows = _lay(values, starts[::-1], lengths[::-1], backward)
            return Overlapped(shared, np.ascontiguousarray(rows[::-1]))
    return Overlapped(*_lay(values, starts, lengths, matched))


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _matches(values: Values, starts: I64, lengths: I64, begins: npt.NDArray[np.bool_]) -> I64:
    """[U] the longest suffix of row u - 1 which is a prefix of row u."""
    matches = np.zeros(starts.size, np.int64)
    longest = 0
    for length in lengths:
        longest = max(longest, length)
    borders = np.zeros(longest + 1, np.int64)  # of the row's first n values, at index n
    for u in range(1, starts.size):
        start, stop = starts[u], starts[u - 1] + lengths[u - 1]
        matched, known, border = 0, 1, 0
        if begins[u] or not lengths[u]:
            continue
        first = values[start]
        for i in range(max(starts[u - 1], stop - lengths[u]), stop):
            value = values[i]
            if not matched:  # most rows share nothing: their way is short
                matched += value == first
                continue
            while matched and values[start + matched] != value:
                while known < matched:  # borders are found as far as they are asked for
                    last = values[start + known]
                    while border and values[start + border] != last:
                        border = borders[border]
                    if values[start + border] == last:
                        border += 1
                    known += 1
                    borders[known] = border
                matched = borders[matched]
            if values[start + matched] == value:
                matched += 1
        matches[u] = matched
    return matches


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _lay(values: Values, starts: I64, lengths: I64, matches: I64) -> tuple[Values, I64]:
    """Every row ends where the shared values so far end; so may the next begin before that."""
    shared = np.empty(lengths.sum() - matches.sum(), values.dtype)
    rows = np.empty((starts.size, 2), np.int64)
    end = 0
    for u in range(starts.size):
        rows[u, 0], rows[u, 1] = end - matches[u], lengths[u]
        fresh = values[starts[u] + matches[u] : starts[u] + lengths[u]]
        target = shared[end : end + fresh.size]
        for i in range(fresh.size):
            target[i] = fresh[i]
        end += fresh.size
    return shared, rows
