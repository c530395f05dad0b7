"""Which rows are equal, in torch's own operations: for ids that live on an accelerator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["RowHash", "hash_rows", "unique_rows_on_device"]

MIX = 0xFF51AFD7ED558CCD - 2**64  # torch multiplies int64 modulo 2^64, as uint64 would
STEP = 0x9E3779B97F4A7C15 - 2**64

RowHash = Callable[[Tensor, Tensor, int], Tensor]
"""Values, offsets and the round's number to [B] hashes."""


def hash_rows(values: Tensor, offsets: Tensor, attempt: int) -> Tensor:
    """h = Σ_j mix(v_j xor mix(j + attempt)) over the row's positions j, and its length: [B]."""
    lengths = offsets.diff()
    _, positions = _positions(lengths)
    ids = values[offsets[0] : offsets[-1]].to(torch.int64)
    terms = _mix(ids ^ _mix((positions + 1) * STEP + attempt))
    sums = torch.nn.functional.pad(terms.cumsum(0), (1, 0))
    ends = offsets - offsets[0]
    return _mix(sums[ends[1:]] - sums[ends[:-1]] + lengths)


def unique_rows_on_device(
    values: Tensor, offsets: Tensor, hash_rows: RowHash = hash_rows
) -> tuple[Tensor, Tensor]:
    """As `unique_rows`: (inverse_lookup [B], firsts [U]), on the device of `values`.

    Rows of one hash are compared with the first of them; those that differ from it meet again
    under another hash. Equal rows are never parted, and unequal ones never merged.
    """
    offsets = offsets.to(torch.int64)
    rows = torch.arange(offsets.numel() - 1, device=values.device)
    firsts = torch.empty_like(rows)
    left, attempt = rows, 0
    while left.numel():
        _, codes = torch.unique(hash_rows(values, offsets, attempt)[left], return_inverse=True)
        leads = torch.full_like(left, rows.numel()).scatter_reduce(0, codes, left, "amin")[codes]
        same = _equal(values, offsets, leads, left)
        firsts[left[same]] = leads[same]
        left, attempt = left[~same], attempt + 1
    appears = firsts == rows
    return (appears.cumsum(0) - 1)[firsts], appears.nonzero().squeeze(1)


def _equal(values: Tensor, offsets: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """[n] bool: whether rows left[i] and right[i] hold the same."""
    lengths = offsets.diff()
    equal = lengths[left] == lengths[right]
    pairs, positions = _positions(torch.where(equal, lengths[left], 0))
    differ = values[offsets[left][pairs] + positions] != values[offsets[right][pairs] + positions]
    equal[pairs[differ]] = False
    return equal


def _positions(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """For each value of rows of `lengths` [B]: its row [N], and its position within it [N]."""
    rows = torch.repeat_interleave(lengths)
    starts = lengths.cumsum(0) - lengths
    return rows, torch.arange(rows.numel(), device=lengths.device) - starts[rows]


def _mix(x: Tensor) -> Tensor:
    x = (x ^ (x >> 32)) * MIX
    return x ^ (x >> 29)
