"""Shifted rows: where one row ends as the next begins, both share those values.

Each row is laid at the end of the values kept so far, over the longest suffix of them which
is its prefix (Knuth, Morris and Pratt: linear, whatever the ids).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["Overlapped", "overlap_rows"]

I64 = npt.NDArray[np.int64]


class Overlapped(NamedTuple):
    """U rows over shared values."""

    values: npt.NDArray[Any]
    """[K] the shared values."""
    rows: I64
    """[U, 2] each row's offset among the shared values, and its length."""


def overlap_rows(
    values: npt.NDArray[Any],
    starts: I64,
    lengths: I64,
    begins: npt.NDArray[np.bool_] | None = None,
) -> Overlapped:
    """Lay rows `values[starts[u] : starts[u] + lengths[u]]`, u < U, over each other.

    Lists grow at their end, so row u + 1 is laid over the end of row u; or, where that keeps
    fewer values, at their front (newest first), so row u over the end of row u + 1. A row
    with `begins` [U] shares nothing with those before it; by default any row may.
    """
    if begins is None:
        begins = np.zeros(starts.size, np.bool_)
    forward = Overlapped(*_lay(values, starts, lengths, begins))
    # Half the values saved is more than newest-first lists leave to be found in this order.
    if 2 * forward.values.size <= lengths.sum():
        return forward
    ends = np.append(begins[1:], True)[: begins.size]
    shared, rows = _lay(values, starts[::-1], lengths[::-1], ends[::-1])
    if shared.size < forward.values.size:
        return Overlapped(shared, np.ascontiguousarray(rows[::-1]))
    return forward


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _lay(
    values: npt.NDArray[Any], starts: I64, lengths: I64, begins: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[Any], I64]:
    total, longest = 0, 0
    for length in lengths:
        total += length
        longest = max(longest, length)
    shared = np.empty(total, values.dtype)
    rows = np.empty((starts.size, 2), np.int64)
    borders = np.zeros(longest + 1, np.int64)  # of the row's first n values, at index n
    end, begin = 0, 0
    for u in range(starts.size):
        start, length = starts[u], lengths[u]
        if begins[u]:
            begin = end
        matched, known, border = 0, 1, 0  # borders are found as far as they are asked for
        for i in range(max(begin, end - length), end):
            value = shared[i]
            while matched and values[start + matched] != value:
                while known < matched:
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
        rows[u, 0] = end - matched
        rows[u, 1] = length
        for i in range(start + matched, start + length):
            shared[end] = values[i]
            end += 1
    return shared[:end], rows
