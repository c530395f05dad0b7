"""Jagged rows as CUDA's attention takes them: end to end as they are, without blocks or padding.

Blocks (`jagged_attention`) need more calls, for which a GPU waits: a step of RM1 on an H200 had
124, a third of what the processor had to launch. So all rows go into one call, unless that takes
too much memory: for each row, the backward of CUDA's attention keeps the gradients of queries as if
the row were as long as the longest row of its call. Beyond `CALL_BYTES` of these, and beyond the
rows that a call can launch, rows are sorted by length into several calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from recd_dlrm.poolings.jagged_attention import Permute
from recd_dlrm.poolings.reduce import rows_of
from recd_plugins.api.embedding import attention_of_rows, counted_rows

__all__ = ["Call", "RowsOfChunk", "WholeRows", "blocks_of_call"]

CALL_BYTES = 1 << 30
"""The most bytes that the backward of one call should keep for gradients of queries."""
MOST_ROWS = (1 << 16) - 1
"""The most rows of one call: CUDA launches no grid that is larger in this direction."""
BLOCK = 64
"""How many queries, and how many numbers of a head, have their gradients kept together, in
float32."""


def blocks_of_call(num_heads: int, head_dim: int) -> int:
    """The number of blocks of queries, over all rows of a call, for which `CALL_BYTES` suffice."""
    return CALL_BYTES // (num_heads * -(-head_dim // BLOCK) * BLOCK * BLOCK * 4)


class Call(NamedTuple):
    """Neighbouring rows that one call processes."""

    num_values: int
    """The number of their values, which follow those of the previous call."""
    bounds: Tensor
    """[r + 1]: where each row begins in these values, and where the last one ends; int32, as CUDA's
    attention requires."""
    longest: int


class RowsOfChunk(NamedTuple):
    """Rows end to end, except for those of length 0."""

    lengths: Tensor
    """[b], each at least 1."""
    rows: Tensor
    """[n]: the row of each value."""
    ages: Tensor
    """[n]: how many values of its row come after each."""
    calls: tuple[Call, ...]

    def self_attention(self, packed: Tensor, num_heads: int, only_last: bool) -> Tensor:
        """[n, D] from queries, keys and values side by side [n, 3 * D]; with `only_last`, [b, D]
        for the last query of each row."""
        by_head = packed.view(len(packed), 3, num_heads, -1)
        parts: tuple[Tensor, ...] = (by_head,)
        if len(self.calls) > 1:  # split at once: a slice's gradient would be as large as all values
            parts = by_head.split([call.num_values for call in self.calls])
        seen = []
        for (_, bounds, longest), of_call in zip(self.calls, parts, strict=True):
            q, k, v = of_call.unbind(1)
            of_queries, most_queries = bounds, longest
            if only_last:
                q, most_queries = q.index_select(0, bounds[1:].long() - 1), 1
                of_queries = torch.arange(len(bounds), dtype=torch.int32, device=q.device)
            both = (of_queries, bounds), (most_queries, longest)
            seen.append(attention_of_rows(q, k, v, *both).flatten(1))
        return torch.cat(seen) if len(seen) > 1 else seen[0]


class WholeRows(NamedTuple):
    """One chunk of rows with lengths [B], at least one of them not 0, and the way back to rows."""

    chunks: tuple[RowsOfChunk, ...]
    order: Tensor | None
    """[N]: the chunk's values, by their place in the original rows; None if all stayed in place."""
    places: Tensor | None
    """[B]: where each row is in the chunk; past the last one for a row of length 0. None if all
    stayed in place."""

    @classmethod
    def of(cls, lengths: Tensor, num_values: int, most_blocks: int) -> WholeRows:
        """The rows of `lengths` [B], with `num_values` values, in calls of at most `most_blocks`
        blocks of queries. This waits for two numbers, unless they were counted before; or for all
        lengths if one call is not enough."""
        given, filled = lengths, lengths > 0
        longest, count = (
            counted_rows(lengths) or torch.stack([lengths.max().long(), filled.sum()]).tolist()
        )
        in_one = count <= min(MOST_ROWS, most_blocks // -(-longest // BLOCK))
        order = places = None
        if count < len(lengths) or not in_one:
            kinds = filled if in_one else _kinds(lengths)
            kept = torch.sort(kinds, descending=True, stable=True).indices[:count]
            standing = torch.arange(count, device=lengths.device)
            places = torch.full_like(lengths, count, dtype=torch.int64)
            places = places.index_copy(0, kept, standing)
            lengths = lengths.index_select(0, kept)
        bounds = F.pad(lengths.cumsum(0), (1, 0))
        rows = rows_of(lengths, num_values)
        in_chunk = torch.arange(num_values, device=lengths.device)
        ages = bounds[1:].index_select(0, rows) - 1 - in_chunk
        calls = [Call(num_values, bounds.int(), longest)]
        if not in_one:
            moved = (given.cumsum(0) - given).index_select(0, kept) - bounds[:-1]
            order = in_chunk + moved.index_select(0, rows)
            calls = [
                Call(b - a, (bounds[i : j + 1] - a).int(), height)
                for i, j, a, b, height in _cut(lengths.cpu().numpy().astype(np.int64), most_blocks)
            ]
        return cls((RowsOfChunk(lengths, rows, ages, tuple(calls)),), order, places)

    def values(self, values: Tensor) -> tuple[Tensor, ...]:
        """[n, D] for each chunk, from values [N, D]."""
        if self.order is None:
            return (values,)
        ordered: Tensor = Permute.apply(values, self.order)
        return (ordered,)

    def rows(self, outputs: Sequence[Tensor]) -> Tensor:
        """[B, D] from [b, D] of the chunk; zeros for length 0."""
        (pooled,) = outputs
        if self.places is None:
            return pooled
        return F.pad(pooled, (0, 0, 0, 1)).index_select(0, self.places)


def _kinds(lengths: Tensor) -> Tensor:
    """[B]: 0 for a row of length 0, 1 for one block of queries, then 1 more each time the blocks
    double. The rows of one kind are at most twice as long as each other, or have one block."""
    blocks = 2 ** torch.arange(30, device=lengths.device)
    return torch.bucketize(lengths.long(), F.pad(BLOCK * blocks, (1, 0)))


def _cut(
    lengths: npt.NDArray[np.int64], most_blocks: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """The rows and the values at which each call begins and ends, and the length of its longest
    row, from lengths [b] sorted by kind."""
    kinds = _kinds(torch.from_numpy(lengths)).numpy()
    bounds = np.concatenate([[0], lengths.cumsum()])
    changes = np.flatnonzero(np.diff(kinds)) + 1
    for first, last in pairwise([0, *changes.tolist(), len(lengths)]):
        blocks = -(-int(lengths[first:last].max()) // BLOCK)
        step = min(MOST_ROWS, max(1, most_blocks // blocks))
        for start in range(first, last, step):
            stop = min(start + step, last)
            height = int(lengths[start:stop].max())
            yield start, stop, int(bounds[start]), int(bounds[stop]), height
