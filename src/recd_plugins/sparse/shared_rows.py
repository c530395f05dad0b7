"""One feature's rows over shared values: each row is [offset, length] among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recd_plugins.sparse.overlap import overlap_rows
from recd_plugins.sparse.unique import unique_rows

__all__ = ["SharedRows", "Symbols"]


class SharedRows(NamedTuple):
    """U rows; rows may overlap, and values may be in no row's span but `select` drops those."""

    values: Tensor
    """[K] ids."""
    weights: Tensor | None
    """[K], or none where ids have none."""
    spans: Tensor
    """[U, 2] int64, [offset, length]."""

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


class Symbols(NamedTuple):
    """B rows of ids as rows of what must agree for two to be equal: the ids, or codes for
    (id, weight), both bit by bit."""

    values: Tensor
    """[N] ids, or codes."""
    offsets: Tensor
    """[B + 1]."""
    ids: Tensor | None = None
    """Where `values` are codes: the id of each."""
    weights: Tensor | None = None
    """And its weight."""

    @classmethod
    def of(cls, ids: Tensor, weights: Tensor | None, offsets: Tensor) -> Symbols:
        if weights is None:
            return cls(ids, offsets)
        bits = weights.view(BITS[weights.element_size()])
        pairs = torch.stack([ids.long(), bits.long()], dim=1).view(-1)
        codes, firsts = unique_rows(pairs, torch.arange(0, pairs.numel() + 1, 2))
        return cls(codes, offsets, ids[firsts], weights[firsts])

    def share(self, rows: Tensor) -> SharedRows:
        """Rows [U], each laid over its neighbour where it is a shift of it."""
        starts = self.offsets[rows].long()
        lengths = self.offsets[rows + 1].long() - starts
        shared, spans = map(
            torch.from_numpy,
            overlap_rows(self.values.numpy(), starts.numpy(), lengths.numpy()),
        )
        if self.ids is None or self.weights is None:
            return SharedRows(shared, None, spans)
        return SharedRows(self.ids[shared], self.weights[shared], spans)


BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
