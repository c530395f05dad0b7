"""One feature's rows over shared values: each row is [offset, length] among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from recd_plugins.sparse.rows.gather import spread_rows
from recd_plugins.sparse.rows.overlap import overlap_rows
from recd_plugins.sparse.rows.unique import unique_rows
from recd_plugins.sparse.rows.weighted import Weighted

__all__ = ["SharedRows"]


class SharedRows(NamedTuple):
    """U rows, which may overlap."""

    values: Tensor
    """[K] ids."""
    weights: Tensor | None
    """[K], or none where ids have none."""
    spans: Tensor
    """[U, 2] int64: each row's [offset, length]."""

    @classmethod
    def of(cls, feature: Weighted, rows: Tensor) -> SharedRows:
        """Rows `rows` [U] of a feature, each laid over its neighbour where it is a shift of it.

        A weight is part of its id: rows share values where both agree, bit by bit.
        """
        if feature.weights is None:
            return cls._overlapped(feature.values, feature.lengths, rows)
        pairs = torch.stack([column.long() for column in feature.columns()], dim=1).view(-1)
        codes, firsts = unique_rows(pairs, torch.arange(0, pairs.numel() + 1, 2))
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
        """Rows [N], in this order, over those values alone that one of them needs."""
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

    def spread(self, lengths: torch.dtype) -> Weighted:
        """Each row in full, one after another."""
        starts, counts = self.spans.unbind(1)
        weights = None if self.weights is None else spread_rows(self.weights, starts, counts)
        return Weighted(spread_rows(self.values, starts, counts), counts.to(lengths), weights)

    @staticmethod
    def concat(parts: Sequence[SharedRows]) -> SharedRows:
        """The rows of all parts, one part after another; nothing is shared across parts."""
        spans, done = [], 0
        for part in parts:
            spans.append(part.spans + part.spans.new_tensor([done, 0]))
            done += part.values.numel()
        weights = [part.weights for part in parts if part.weights is not None]
        return SharedRows(
            torch.cat([part.values for part in parts]),
            torch.cat(weights) if weights else None,
            torch.cat(spans),
        )
