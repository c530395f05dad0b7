"""Ids of no row: TorchRec looks other rows up in their place, and replicas must do likewise.

    u = id modulo 2^bits,  b = ceil(rows / W)
    rank = u // b  if u < b W,  else u mod W
    row = b rank

Row-wise sharding deals ids out to ranks before anyone checks them. The rank has no such row, and
fbgemm's check of bounds, where it is not fatal, takes the rank's first row.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rows_looked_up"]

PRUNED = -1
"""fbgemm's check leaves this id as it is."""


def rows_looked_up(ids: Tensor, num_rows: int, world_size: int, *, bits: int = 64) -> Tensor:
    """[n] int64: the row that row-wise TorchRec looks up for each of `ids` [n] int64.

    `bits` are those of the type that the ids came in. An id that is dealt out to a rank without
    rows stays as it is, for TorchRec to judge.
    """
    block = -(-num_rows // world_size)
    negative = ids < 0
    dealt = ~negative & (ids < block * world_size)
    past = (ids % world_size + negative * ((1 << bits) % world_size)) % world_size
    first = torch.where(dealt, ids // block, past) * block
    known = ~negative & (ids < num_rows)
    stay = known | (first >= num_rows)
    if world_size == 1:
        stay |= ids == PRUNED
    return torch.where(stay, ids, first)
