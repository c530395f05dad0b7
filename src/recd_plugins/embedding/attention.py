"""Self-attention over jagged rows: each value of a row attends to all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from recd_plugins.embedding.buckets import Chunk
from recd_plugins.embedding.expand import expand_rows

__all__ = ["self_attention"]


def self_attention(packed: Tensor, num_heads: int, chunk: Chunk, only_last: bool = False) -> Tensor:
    """[n, D] of queries, keys and values side by side [n, 3 * D]; [b, D] of rows' last queries."""
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
    """All blocks in one node: as much time again would go to the views of small blocks."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, num_heads: int, chunk: Chunk) -> Tensor:
        padded, bias = packed, None
        if chunk.is_padded:
            padded = packed.index_select(0, chunk.cells)
            bias = packed.new_zeros(len(chunk.cells)).masked_fill_(~chunk.mask, float("-inf"))
        kept = []
        for (q, k, v), mask in _blocks(padded, bias, num_heads, chunk):
            kept += FLASH(q, k, v, attn_mask=mask)
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
            # As the output, whose heads lie side by side.
            by_head = of_seen.view(out.transpose(1, 2).shape).transpose(1, 2)
            found = FLASH_BACKWARD(by_head, q, k, v, out, sums, 0.0, False, attn_mask=mask)
            for place, some in zip(into, found, strict=True):
                place.copy_(some)
        # Padding has no say in what is seen, nor a gradient.
        return made.index_select(0, chunk.places) if chunk.is_padded else made, None, None


FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


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
