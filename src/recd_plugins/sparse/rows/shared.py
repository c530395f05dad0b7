"""One feature's rows over shared values: each row is [offset, length] among them.

If one row ends with the values with which the next begins, the two share those values. Each row is
laid over the longest suffix of its neighbour that is its own prefix (Knuth, Morris and Pratt:
linear for all ids).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.jagged import WeightedJagged
from recd_plugins.sparse.rows.gather import spread_rows
from recd_plugins.sparse.rows.unique import unique_rows

__all__ = ["Overlapped", "SharedRows", "overlap_rows"]


class SharedRows(NamedTuple):
    """U rows, which may overlap."""

    values: Tensor
    """[K] ids."""
    weights: Tensor | None
    """[K]; None if the ids have no weights."""
    spans: Tensor
    """[U, 2] int64: each row's [offset, length]."""

    @classmethod
    def of(cls, feature: WeightedJagged, rows: Tensor) -> SharedRows:
        """Rows `rows` [U] of a feature, each laid over its neighbour where it is a shift of it.

        A weight counts as part of its id: rows share values only if ids and weights agree bit by
        bit.
        """
        if feature.weights is None:
            return cls._overlapped(feature.values, feature.lengths, rows)
        pairs = torch.stack([column.long() for column in feature.columns()], dim=1).view(-1)
        codes, firsts = unique_rows(pairs, torch.arange(0, pairs.numel() + 1, 2, device="cpu"))
        shared = cls._overlapped(codes, feature.lengths, rows)
        where = firsts[shared.values]
        return cls(feature.values[where], feature.weights[where], shared.spans)

    @classmethod
    def _overlapped(cls, values: Tensor, lengths: Tensor, rows: Tensor) -> SharedRows:
        offsets = pad(lengths.cumsum(0), (1, 0))
        found = overlap_rows(
            values.contiguous().numpy(), offsets[rows].numpy(), lengths[rows].long().numpy()
        )
        return cls(torch.from_numpy(found.values), None, torch.from_numpy(found.rows))

    def select(self, rows: Tensor) -> SharedRows:
        """Rows [N], in this order, over only those values that one of them needs."""
        spans = self.spans[rows]
        starts, stops = spans[:, 0], spans.sum(1)
        borders = spans.new_zeros(self.values.numel() + 1)
        borders.index_add_(0, starts, torch.ones_like(starts))
        borders.index_add_(0, stops, -torch.ones_like(stops))
        needed = borders.cumsum(0) > 0
        before = needed.cumsum(0) - needed.long()
        return SharedRows(
            self.values[needed[:-1]],
            None if self.weights is None else self.weights[needed[:-1]],
            torch.stack([before[starts], spans[:, 1]], dim=1),
        )

    def spread(self, lengths: torch.dtype, numel: int | None = None) -> WeightedJagged:
        """Each row in full, one after another, with `numel` values in all."""
        starts, counts = self.spans.unbind(1)
        weights = self.weights
        if weights is not None:
            weights = spread_rows(weights, starts, counts, numel)
        values = spread_rows(self.values, starts, counts, numel)
        return WeightedJagged(values, counts.to(lengths), weights)

    @staticmethod
    def concat(parts: Sequence[SharedRows]) -> SharedRows:
        """The rows of all parts, one part after another; nothing is shared across parts.

        If some parts have weights, the ids of the others weigh 1.
        """
        spans, done = [], 0
        for part in parts:
            spans.append(part.spans + part.spans.new_tensor([done, 0]))
            done += part.values.numel()
        weights = [part.weights for part in parts if part.weights is not None]
        if 0 < len(weights) < len(parts):
            one = weights[0].new_ones(1)
            weights = [
                one.expand_as(part.values) if part.weights is None else part.weights
                for part in parts
            ]
        return SharedRows(
            torch.cat([part.values for part in parts]),
            torch.cat(weights) if weights else None,
            torch.cat(spans),
        )


I64: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.NDArray[Any]


class Overlapped(NamedTuple):
    """U rows over shared values."""

    values: Values
    """[K] the shared values."""
    rows: I64
    """[U, 2] each row's offset in the shared values, and its length."""


def overlap_rows(
    values: Values, starts: I64, lengths: I64, begins: npt.NDArray[np.bool_] | None = None
) -> Overlapped:
    """Lay rows `values[starts[u] : starts[u] + lengths[u]]`, u < U, over each other.

    If lists grow at their end, row u + 1 is laid over the end of row u. If they grow at their
    front, newest first, row u is laid over the end of row u + 1. All rows take the way that keeps
    fewer values. A row marked in `begins` [U] shares nothing with the rows before it.
    """
    if begins is None:
        begins = np.zeros(starts.size, np.bool_)
    matched = _matches(values, starts, lengths, begins)
    # If half of the values are shared, lists grow at their end: no need to look further.
    if 2 * matched.sum() < lengths.sum():
        ends = np.append(begins[1:], True)[: begins.size]
        backward = _matches(values, starts[::-1], lengths[::-1], ends[::-1])
        if backward.sum() > matched.sum():
            shared, rows = _lay(values, starts[::-1], lengths[::-1], backward)
            return Overlapped(shared, np.ascontiguousarray(rows[::-1]))
    return Overlapped(*_lay(values, starts, lengths, matched))


@kernel
def _matches(values: Values, starts: I64, lengths: I64, begins: npt.NDArray[np.bool_]) -> I64:
    """[U] the length of the longest suffix of row u - 1 that is a prefix of row u."""
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


@kernel
def _lay(values: Values, starts: I64, lengths: I64, matches: I64) -> tuple[Values, I64]:
    """Each row ends where the shared values end so far. So the next row may begin before that
    end."""
    numel = 0
    for u in range(starts.size):
        numel += lengths[u] - matches[u]
    shared = np.empty(numel, values.dtype)
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
