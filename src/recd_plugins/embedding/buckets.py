"""Jagged rows as padded blocks, cut so that padding stays within a budget.

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

from recd_plugins.embedding.expand import expand_rows

__all__ = ["PADDING_BUDGET", "Block", "Buckets", "Shape", "block_cells", "cut"]

PADDING_BUDGET = 1.15
"""Cells of a block over the values in it, at most."""
CACHED = 1 << 19
"""Bytes of a block's values, for each thread of a CPU: what a layer makes of them stays in its
cache. A quarter faster than blocks of any size (a layer of D = 64, forward and backward)."""


def block_cells(values: Tensor) -> int | None:
    """The most cells that a block of values [N, D] should have; none for no limit."""
    if values.device.type != "cpu":
        return None
    return torch.get_num_threads() * CACHED // (values.element_size() * values.shape[1])


class Shape(NamedTuple):
    """Of a block: its rows, the length of the longest, and whether all are as long."""

    rows: int
    length: int
    full: bool


class Block(NamedTuple):
    """Rows of nearly one length, padded at their front to that of the longest.

    So the last values of all rows are one column, and those before them the next one.
    """

    values: Tensor
    """[b, l, D]; a padding cell repeats its row's first value."""
    lengths: Tensor
    """[b], each from 1 to l."""
    mask: Tensor | None
    """[b, l]: false for padding; none where there is no padding."""


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
    def of(
        cls, lengths: Tensor, budget: float = PADDING_BUDGET, max_cells: int | None = None
    ) -> Buckets:
        """Cut rows of `lengths` [B]; on CUDA this waits for them."""
        falling, order = lengths.long().sort(descending=True, stable=True)
        shapes = cut(falling.cpu().numpy(), budget, max_cells)
        num_rows = sum(shape.rows for shape in shapes)
        num_cells = sum(shape.rows * shape.length for shape in shapes)
        falling, order = falling[:num_rows], order[:num_rows]

        widths = np.repeat([s.length for s in shapes], [s.rows for s in shapes])
        width = torch.from_numpy(widths.astype(np.int64)).to(lengths.device)
        row = torch.repeat_interleave(width, output_size=num_cells)
        column = torch.arange(num_cells, device=lengths.device) - (width.cumsum(0) - width)[row]
        starts = (lengths.cumsum(0) - lengths)[order]
        cells = starts[row] + (column - (width - falling)[row]).clamp(min=0)

        places = torch.full_like(lengths, num_rows, dtype=torch.long)
        places[order] = torch.arange(num_rows, device=lengths.device)
        return cls(shapes, falling, cells, places)

    def blocks(self, values: Tensor) -> Iterator[Block]:
        """The blocks of values [N, D]."""
        padded = expand_rows(values, self.cells)  # all at once, and so the gradient
        blocks = padded.split([shape.rows * shape.length for shape in self.shapes])
        lengths = self.lengths.split([shape.rows for shape in self.shapes])
        for shape, block, of_rows in zip(self.shapes, blocks, lengths, strict=True):
            mask = None
            if not shape.full:
                ages = torch.arange(shape.length - 1, -1, -1, device=values.device)
                mask = ages < of_rows.unsqueeze(1)
            yield Block(block.view(shape.rows, shape.length, -1), of_rows, mask)

    def rows(self, outputs: Sequence[Tensor]) -> Tensor:
        """[B, D] from one [b, D] a block, there is at least one; zeros for length 0."""
        pooled = F.pad(torch.cat(list(outputs)), (0, 0, 0, 1))
        return pooled.index_select(0, self.places)


def cut(
    falling: npt.NDArray[np.int64], budget: float, max_cells: int | None = None
) -> tuple[Shape, ...]:
    """Blocks, each as large as the two limits let it be, of lengths [B] sorted falling.

    m rows from row s take m * length_s cells; the share of padding in them grows with m. A row
    longer than `max_cells` is a block of its own.
    """
    lengths = falling[: np.count_nonzero(falling)]
    ends = lengths.cumsum()
    shapes = []
    start = 0
    while start < len(lengths):
        length = int(lengths[start])
        most = len(lengths) if max_cells is None else start + max(1, max_cells // length)
        values = ends[start:most] - ends[start] + length
        cells = length * np.arange(1, len(values) + 1)
        rows = int(np.count_nonzero(cells <= budget * values))
        shapes.append(Shape(rows, length, int(lengths[start + rows - 1]) == length))
        start += rows
    return tuple(shapes)
