"""Jagged rows as CUDA's attention takes them: end to end as they stand, without blocks or padding.

Blocks (`jagged_attention`) cost calls, which a GPU waits for: of a step of RM1 at its full size on
an H200, 124 blocks were most of what the processor had to launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recd_dlrm.poolings.reduce import rows_of
from recd_plugins.api.embedding import attention_of_rows

__all__ = ["RowsOfChunk", "WholeRows"]


class RowsOfChunk(NamedTuple):
    """Rows end to end, in their order, but for those of length 0."""

    lengths: Tensor
    """[b], each at least 1."""
    rows: Tensor
    """[n]: which of the rows each value is of."""
    ages: Tensor
    """[n]: how many values of its row come after each."""
    bounds: Tensor
    """[b + 1]: where each row begins, and where the last ends; int32, as CUDA's attention asks."""
    longest: int

    def self_attention(self, packed: Tensor, num_heads: int, only_last: bool) -> Tensor:
        """[n, D] of queries, keys and values side by side [n, 3 * D]; [b, D] of rows' last
        queries."""
        q, k, v = packed.view(len(packed), 3, num_heads, -1).unbind(1)
        if not only_last:
            bounds = self.bounds, self.bounds
            return attention_of_rows(q, k, v, bounds, (self.longest, self.longest)).flatten(1)
        ends = self.lengths.cumsum(0) - 1
        ones = torch.arange(len(self.bounds), dtype=torch.int32, device=packed.device)
        seen = attention_of_rows(
            q.index_select(0, ends), k, v, (ones, self.bounds), (1, self.longest)
        )
        return seen.flatten(1)


class WholeRows(NamedTuple):
    """One chunk of rows of some lengths [B], at least one of them not 0, and the way back."""

    chunks: tuple[RowsOfChunk, ...]
    places: Tensor | None
    """[B]: where each row stands in the chunk, behind the last for a row of length 0; None where
    there is no such row."""

    @classmethod
    def of(cls, lengths: Tensor, num_values: int) -> WholeRows:
        """The rows of `lengths` [B], which have so many values; this waits for two numbers."""
        filled = lengths > 0
        longest, count = torch.stack([lengths.max().long(), filled.sum()]).tolist()
        places = None
        if count < len(lengths):
            places = torch.where(filled, filled.cumsum(0) - 1, count)
            first = torch.sort(filled, descending=True, stable=True).indices[:count]
            lengths = lengths.index_select(0, first)
        bounds = F.pad(lengths.cumsum(0), (1, 0))
        rows = rows_of(lengths, num_values)
        places_of_values = torch.arange(num_values, device=lengths.device)
        ages = bounds[1:].index_select(0, rows) - 1 - places_of_values
        return cls((RowsOfChunk(lengths, rows, ages, bounds.int(), longest),), places)

    def values(self, values: Tensor) -> tuple[Tensor, ...]:
        """[n, D] for each chunk, of values [N, D]."""
        return (values,)

    def rows(self, outputs: Sequence[Tensor]) -> Tensor:
        """[B, D] from one [b, D] a chunk; zeros for length 0."""
        (pooled,) = outputs
        if self.places is None:
            return pooled
        return F.pad(pooled, (0, 0, 0, 1)).index_select(0, self.places)
