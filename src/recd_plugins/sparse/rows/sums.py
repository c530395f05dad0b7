"""Rows that are added up, each to the one that its place says."""

from __future__ import annotations

from torch import Tensor

__all__ = ["summed_rows"]


def summed_rows(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """[count, ...]: out[p] = the sum of rows[i] over all i with places[i] = p, of the rows' type.

    Numbers of 16 bits are added up in 32: one by one, they would stop to grow at a few hundred
    times their size.
    """
    narrow = rows.is_floating_point() and rows.element_size() == 2
    added = rows.float() if narrow else rows
    sums = added.new_zeros(count, *rows.shape[1:]).index_add_(0, places, added)
    return sums.to(rows.dtype)
