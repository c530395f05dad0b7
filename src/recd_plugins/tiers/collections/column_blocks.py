"""The columns of what bags yield, in blocks of one width, so that all features' move at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain

import torch
from torch import Tensor

__all__ = ["ColumnBlocks"]

Edges = tuple[tuple[int, int], ...]
"""The first column of each feature, and the one behind its last."""


@dataclass(frozen=True)
class ColumnBlocks:
    """The C columns of F features, as K blocks of the largest `width` of which every feature has
    whole ones; mostly it is the width of all features, and each has one block.

        columns    0 to 8 are feature 0's, 8 to 12 feature 1's: blocks 0 and 1, and 2, of width 4
    """

    width: int
    count: int
    """K."""
    begins: tuple[int, ...]
    """[F + 1]: where each feature's blocks begin in `blocks`, and where the last one's end."""
    blocks: Tensor
    """[K] int64: the blocks, feature by feature."""
    feature_begins: Tensor
    """[F] int64: `begins`, without the end."""
    sizes: Tensor
    """[F] int64: the number of blocks that each feature has."""

    @staticmethod
    @lru_cache(64)
    def of(edges: Edges, device: torch.device) -> ColumnBlocks:
        """The blocks of these columns. They are kept on a GPU, for all streams: the processor waits
        until they are there."""
        width = math.gcd(*chain.from_iterable(edges))
        each = [range(first // width, last // width) for first, last in edges]
        begins = [*accumulate(map(len, each), initial=0)]

        def on_device(numbers: Sequence[int]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        return ColumnBlocks(
            width,
            begins[-1],
            tuple(begins),
            on_device([*chain.from_iterable(each)]),
            on_device(begins[:-1]),
            on_device([*map(len, each)]),
        )

    def gather(self, columns: Tensor, features: range) -> Tensor:
        """[f · B, D]: those of all `columns` [B, C] that are of f `features`, which follow each
        other and have D columns each; feature by feature."""
        blocks, rows = self._of(features), len(columns)
        each = len(blocks) // len(features)
        every = self._cut(columns).transpose(0, 1).index_select(0, blocks)
        if each > 1:
            every = every.unflatten(0, (len(features), each)).transpose(1, 2)
        return every.reshape(len(features) * rows, each * self.width)

    def add(self, columns: Tensor, features: range, bags: Tensor) -> None:
        """Add `bags`, as `gather` makes them, to the `columns` in place."""
        blocks, rows = self._of(features), len(columns)
        shape = (len(features), rows, len(blocks) // len(features), self.width)
        self._cut(columns).index_add_(1, blocks, bags.view(shape).transpose(0, 1).flatten(1, 2))

    def move(self, columns: Tensor, places: Tensor, target: Tensor, to: Tensor) -> None:
        """Write the blocks of `columns` at `places` to those of the `target`, which is contiguous,
        at the places `to`."""
        moved = columns.reshape(-1, self.width).index_select(0, places)
        target.view(-1, self.width).index_copy_(0, to, moved)

    def places(self, rows: Tensor, features: Tensor, counts: Sequence[int]) -> Tensor:
        """[p] int64: where, among the blocks of all rows, are those that a row has of a feature:
        row `rows[i]` of feature `features[i]`. These pairs come feature by feature, `counts` of
        each."""
        if len(counts) == self.count:
            return rows * self.count + self.blocks[features]
        ends = self.begins[1:]
        sizes = [end - begin for begin, end in zip(self.begins, ends, strict=False)]
        total = sum(count * size for count, size in zip(counts, sizes, strict=True))
        each = self.sizes[features]
        pairs = torch.repeat_interleave(each, output_size=total)
        within = torch.arange(total, device=rows.device) - (each.cumsum(0) - each)[pairs]
        blocks = self.blocks[self.feature_begins[features][pairs] + within]
        return rows[pairs] * self.count + blocks

    def _cut(self, columns: Tensor) -> Tensor:
        """[B, K, width]."""
        return columns.view(len(columns), self.count, self.width)

    def _of(self, features: range) -> Tensor:
        return self.blocks[self.begins[features.start] : self.begins[features.stop]]
