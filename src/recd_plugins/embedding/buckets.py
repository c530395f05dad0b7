"""Jagged rows as a few padded blocks, cut so that padding stays within a budget.

Heavy-tailed lengths make one padded block mostly padding and a loop over rows mostly
overhead. Sorted by length once, neighbours are of nearly one length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PADDING_BUDGET", "Block", "Buckets", "Shape", "cut"]

PADDING_BUDGET = 1.15
"""Cells of a block over the values in it, at most."""


class Shape(NamedTuple):
    """Of a block: its rows, the length of the longest, and whether all are as long."""

    rows: int
    length: int
    full: bool


class Block(NamedTuple):
    """Rows of nearly one length, padded to the longest."""

    values: Tensor
    """[b, l, D]; a padding cell repeats its row's last value."""
    lengths: Tensor
    """[b], each from 1 to l."""
    full: bool
    """There is no padding."""


@dataclass(frozen=True)
class Buckets:
    """How rows of some lengths [B] become blocks, and what is made of blocks rows again."""

    shapes: tuple[Shape, ...]
    """Of each block, the longest rows first."""
    lengths: Tensor
    """[R], falling, of the R rows that have any value."""
    cells: Tensor
    """[P]: the value in each cell of the blocks, block after block."""
    places: Tensor
    """[B]: where each row stands among the R; R for a row of length 0."""

    @classmethod
    def of(cls, lengths: Tensor, budget: float = PADDING_BUDGET) -> Buckets:
        """Cut rows of `lengths` [B]; on CUDA this waits for them."""
        falling, order = lengths.long().sort(descending=True, stable=True)
        shapes = cut(falling.cpu().numpy(), budget)
        num_rows = sum(shape.rows for shape in shapes)
        num_cells = sum(shape.rows * shape.length for shape in shapes)
        falling, order = falling[:num_rows], order[:num_rows]

        widths = np.repeat([s.length for s in shapes], [s.rows for s in shapes])
        width = torch.from_numpy(widths.astype(np.int64)).to(lengths.device)
        row = torch.repeat_interleave(width, output_size=num_cells)
        column = torch.arange(num_cells, device=lengths.device) - (width.cumsum(0) - width)[row]
        starts = (lengths.cumsum(0) - lengths)[order]
        cells = starts[row] + torch.minimum(column, falling[row] - 1)

        places = torch.full_like(lengths, num_rows, dtype=torch.long)
        places[order] = torch.arange(num_rows, device=lengths.device)
        return cls(shapes, falling, cells, places)

    def blocks(self, values: Tensor) -> Iterator[Block]:
        """The blocks of values [N, D]."""
        padded = values.index_select(0, self.cells)  # all at once: backward is one index_add
        blocks = padded.split([shape.rows * shape.length for shape in self.shapes])
        lengths = self.lengths.split([shape.rows for shape in self.shapes])
        for shape, block, of_rows in zip(self.shapes, blocks, lengths, strict=True):
            yield Block(block.view(shape.rows, shape.length, -1), of_rows, shape.full)

    def rows(self, outputs: Sequence[Tensor]) -> Tensor:
        """[B, D] from one [b, D] a block, there is at least one; zeros for length 0."""
        pooled = F.pad(torch.cat(list(outputs)), (0, 0, 0, 1))
        return pooled.index_select(0, self.places)


def cut(falling: npt.NDArray[np.int64], budget: float) -> tuple[Shape, ...]:
    """Blocks, each as long as the budget lets it be, of lengths [B] sorted falling.

    m rows from row s take m * length_s cells; the share of padding in them grows with m.
    """
    lengths = falling[: np.count_nonzero(falling)]
    ends = lengths.cumsum()
    shapes = []
    start = 0
    while start < len(lengths):
        values = ends[start:] - ends[start] + lengths[start]
        cells = lengths[start] * np.arange(1, len(values) + 1)
        rows = max(1, int(np.count_nonzero(cells <= budget * values)))
        length, shortest = int(lengths[start]), int(lengths[start + rows - 1])
        shapes.append(Shape(rows, length, shortest == length))
        start += rows
    return tuple(shapes)
