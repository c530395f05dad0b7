"""Sums of rows by place."""

from __future__ import annotations

from torch import Tensor

__all__ = ["summed_rows"]


def summed_rows(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """[count, ...]: out[p] = the sum of rows[i] over all i with places[i] = p, in the rows' type.

    16-bit numbers are added up in 32 bits: in 16 bits, a sum would stop growing at a few hundred
    times its terms.
    """
    narrow = rows.is_floating_point() and rows.element_size() == 2
    added = rows.float() if narrow else rows
    sums = added.new_zeros(count, *rows.shape[1:]).index_add_(0, places, added)
    return sums.to(rows.dtype)
