"""Self-attention over jagged rows, in blocks that are cut so that padding stays within a budget.

With heavy-tailed lengths, a single padded block would be mostly padding, and a loop over rows
mostly overhead. After sorting by length, neighbours have nearly the same length. Only attention
needs blocks: operations on single values run on the values themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from recd_plugins.api.embedding import (
    expand_rows,
    flash_attention_on_cpu,
    flash_attention_on_cpu_backward,
)
from recd_plugins.api.rows import kernel

__all__ = [
    "PADDING_BUDGET",
    "SPARE_CELLS",
    "Buckets",
    "Chunk",
    "Permute",
    "Shape",
    "chunk_values",
    "cut",
    "self_attention",
]

PADDING_BUDGET = 1.15
"""The most cells of a block, divided by the values in it, apart from `SPARE_CELLS`."""
SPARE_CELLS = 64
"""The number of padding cells that cost less than another block."""
CACHED = 1 << 19
"""The bytes of a chunk's values for each thread of a CPU, so that what a layer makes of them stays
in its cache. This is a quarter faster than unlimited chunks (a layer of D = 64, forward and
backward)."""

I64 = npt.NDArray[np.int64]


def chunk_values(values: Tensor) -> int | None:
    """How many of the values [N, D] a chunk should have at most; None if there is no limit."""
    if values.device.type != "cpu":
        return None
    return torch.get_num_threads() * CACHED // (values.element_size() * values.shape[1])


class Shape(NamedTuple):
    """The number of a block's rows, and the length of the longest."""

    rows: int
    length: int


class Chunk(NamedTuple):
    """Rows end to end, the longest first, and the blocks into which they are cut.

    In a block, rows are padded at the front to the length of its first row, so that their last
    values form one column.
    """

    lengths: Tensor
    """[b], falling, each at least 1."""
    rows: Tensor
    """[n]: the row of each value."""
    ages: Tensor
    """[n]: how many values of its row come after each."""
    shapes: tuple[Shape, ...]
    """The shapes of the blocks."""
    cells: Tensor
    """[P]: the value in each cell of the blocks, block after block; padding has the first value of
    its row."""
    places: Tensor
    """[n]: the cell of each value."""
    mask: Tensor
    """[P]: false for padding."""

    @property
    def is_padded(self) -> bool:
        return len(self.cells) > len(self.places)

    def self_attention(self, packed: Tensor, num_heads: int, only_last: bool) -> Tensor:
        """[n, D] from queries, keys and values side by side [n, 3 * D]; with `only_last`, [b, D]
        for the last query of each row."""
        return self_attention(packed, num_heads, self, only_last)


@dataclass(frozen=True)
class Buckets:
    """The chunks of rows with lengths [B], and the way back from chunks to rows."""

    chunks: tuple[Chunk, ...]
    order: Tensor
    """[N]: the values of all chunks, by their place in the original rows."""
    places: Tensor
    """[B]: where each row is in the chunks; past the last one for a row of length 0."""

    @classmethod
    def of(
        cls, lengths: Tensor, budget: float = PADDING_BUDGET, max_values: int | None = None
    ) -> Buckets:
        """Cut rows of `lengths` [B]; on CUDA this waits for the lengths."""
        given = lengths.cpu().numpy().astype(np.int64)
        device = lengths.device
        order = np.argsort(-given, kind="stable")
        falling, starts = given[order], (given.cumsum() - given)[order]
        chunks, sources, start = [], [np.empty(0, np.int64)], 0
        for shapes in cut(falling, budget, max_values):
            stop = start + sum(shape.rows for shape in shapes)
            ours = falling[start:stop]
            source, *laid = _lay(ours, starts[start:stop], np.array(shapes))
            lengths_here, of_rows, ages, cells, where, mask = (
                _on(device, one) for one in (ours, *laid)
            )
            chunks.append(Chunk(lengths_here, of_rows, ages, shapes, cells, where, mask))
            sources.append(source)
            start = stop
        places = np.empty_like(order)
        places[order] = np.minimum(np.arange(len(order)), start)
        values, rows = (_on(device, one) for one in (np.concatenate(sources), places))
        return cls(tuple(chunks), values, rows)

    def values(self, values: Tensor) -> tuple[Tensor, ...]:
        """[n, D] for each chunk, from values [N, D]."""
        ordered: Tensor = Permute.apply(values, self.order)
        parts: tuple[Tensor, ...] = ordered.split([len(chunk.rows) for chunk in self.chunks])
        return parts

    def rows(self, outputs: Sequence[Tensor]) -> Tensor:
        """[B, D] from [b, D] of each chunk, of which there is at least one; zeros for length 0."""
        pooled = F.pad(torch.cat(list(outputs)), (0, 0, 0, 1))
        return pooled.index_select(0, self.places)


def _on(device: torch.device, numbers: npt.NDArray[Any]) -> Tensor:
    """Numbers of the processor, copied to a device: from pinned memory, without waiting."""
    made = torch.from_numpy(numbers)
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)


class Permute(torch.autograd.Function):
    """out[i] = values[order[i]], each value once, so the gradient is gathered and not summed."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return values.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        return torch.empty_like(gradient).index_copy_(0, order, gradient), None


def cut(
    falling: I64, budget: float = PADDING_BUDGET, max_values: int | None = None
) -> tuple[tuple[Shape, ...], ...]:
    """The blocks of each chunk, as large as the limits allow, from lengths [B] that fall.

    m rows from row s take m * length_s cells; their share of padding grows with m. A row longer
    than `max_values` is a chunk of its own.
    """
    rows, firsts = _cut(falling, budget, max_values or int(falling.sum()))
    heights = falling[rows.cumsum() - rows]
    shapes = [Shape(*each) for each in zip(rows.tolist(), heights.tolist(), strict=True)]
    return tuple(tuple(shapes[a:b]) for a, b in pairwise([*firsts.tolist(), len(shapes)]))


@kernel
def _cut(falling: I64, budget: float, max_values: int) -> tuple[I64, I64]:
    """The rows of each block, and the first block of each chunk."""
    rows = np.empty(len(falling), np.int64)
    firsts = np.empty(len(falling), np.int64)
    blocks = chunks = in_chunk = in_block = height = 0
    for length in falling:
        if length == 0:
            break
        new_chunk = blocks == 0 or in_chunk + length > max_values
        if new_chunk:
            firsts[chunks] = blocks
            chunks += 1
            in_chunk = 0
        cells = 0 if new_chunk else height * (rows[blocks - 1] + 1)
        if new_chunk or cells > budget * (in_block + length) + SPARE_CELLS:
            rows[blocks] = 0
            blocks += 1
            in_block = 0
            height = length
        rows[blocks - 1] += 1
        in_block += length
        in_chunk += length
    return rows[:blocks].copy(), firsts[:chunks].copy()


@kernel
def _lay(
    lengths: I64, starts: I64, shapes: I64
) -> tuple[I64, I64, I64, I64, I64, npt.NDArray[np.bool_]]:
    """The layout of a chunk: the sources, rows and ages of its values; and its cells, places and
    mask."""
    num_values = num_cells = 0
    for length in lengths:
        num_values += length
    for block in range(len(shapes)):
        num_cells += shapes[block, 0] * shapes[block, 1]
    source = np.empty(num_values, np.int64)
    rows = np.empty(num_values, np.int64)
    ages = np.empty(num_values, np.int64)
    places = np.empty(num_values, np.int64)
    cells = np.empty(num_cells, np.int64)
    mask = np.empty(num_cells, np.bool_)
    row = value = cell = 0
    for block in range(len(shapes)):
        for _ in range(shapes[block, 0]):
            length = lengths[row]
            for _ in range(shapes[block, 1] - length):
                cells[cell] = value
                mask[cell] = False
                cell += 1
            for column in range(length):
                source[value] = starts[row] + column
                rows[value] = row
                ages[value] = length - 1 - column
                places[value] = cell
                cells[cell] = value
                mask[cell] = True
                value += 1
                cell += 1
            row += 1
    return source, rows, ages, cells, places, mask


def self_attention(packed: Tensor, num_heads: int, chunk: Chunk, only_last: bool) -> Tensor:
    """[n, D] from queries, keys and values side by side [n, 3 * D]; with `only_last`, [b, D] for
    the last query of each row."""
    if packed.is_cpu and not only_last:
        seen: Tensor = _SelfAttention.apply(packed, num_heads, chunk)
        return seen
    padded = expand_rows(packed, chunk.cells) if chunk.is_padded else packed
    outputs = []
    for (q, k, v), mask in _blocks(padded, chunk.mask, num_heads, chunk):
        some = F.scaled_dot_product_attention(q[:, :, -1:] if only_last else q, k, v, mask)
        outputs.append(some.transpose(1, 2).flatten(2).flatten(0, 1))
    seen = torch.cat(outputs)
    return seen.index_select(0, chunk.places) if chunk.is_padded and not only_last else seen


class _SelfAttention(torch.autograd.Function):
    """All blocks in one autograd node: the views of small blocks would double the time."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, num_heads: int, chunk: Chunk) -> Tensor:
        padded, bias = packed, None
        if chunk.is_padded:
            padded = packed.index_select(0, chunk.cells)
            bias = packed.new_zeros(len(chunk.cells)).masked_fill_(~chunk.mask, float("-inf"))
        kept = []
        for (q, k, v), mask in _blocks(padded, bias, num_heads, chunk):
            kept += flash_attention_on_cpu(q, k, v, attn_mask=mask)
        ctx.num_heads, ctx.chunk = num_heads, chunk
        ctx.save_for_backward(padded, bias, *kept)
        seen = torch.cat([out.transpose(1, 2).flatten(2).flatten(0, 1) for out in kept[::2]])
        return seen.index_select(0, chunk.places) if chunk.is_padded else seen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        padded, bias, *kept = ctx.saved_tensors
        chunk: Chunk = ctx.chunk
        if chunk.is_padded:
            width = gradient.shape[1]
            zeros = gradient.new_zeros(len(chunk.cells), width)
            gradient = zeros.index_copy_(0, chunk.places, gradient)
        made = torch.empty_like(padded)
        blocks = _blocks(padded, bias, ctx.num_heads, chunk)
        gradients = _blocks(made, None, ctx.num_heads, chunk)
        sizes = [shape.rows * shape.length for shape in chunk.shapes]
        for ((q, k, v), mask), (into, _), of_seen, out, sums in zip(
            blocks, gradients, gradient.split(sizes), kept[::2], kept[1::2], strict=True
        ):
            # Laid out like the output, whose heads are side by side.
            by_head = of_seen.view(out.transpose(1, 2).shape).transpose(1, 2)
            found = flash_attention_on_cpu_backward(
                by_head, q, k, v, out, sums, 0.0, False, attn_mask=mask
            )
            for place, some in zip(into, found, strict=True):
                place.copy_(some)
        # Padding does not affect the output, and has no gradient.
        return made.index_select(0, chunk.places) if chunk.is_padded else made, None, None


def _blocks(
    padded: Tensor, mask: Tensor | None, num_heads: int, chunk: Chunk
) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]]:
    """Each block's queries, keys and values [b, H, l, D / H], and its mask [b, 1, 1, l]."""
    sizes = [shape.rows * shape.length for shape in chunk.shapes]
    masks = [None] * len(sizes) if mask is None or not chunk.is_padded else mask.split(sizes)
    for (rows, length), cells, of_cells in zip(
        chunk.shapes, padded.split(sizes), masks, strict=True
    ):
        q, k, v = cells.view(rows, length, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        yield (q, k, v), None if of_cells is None else of_cells.view(rows, 1, 1, length)
