"""How a tier's rows are dealt out to the ranks of a node.

A node has a share for each of its ranks, but two ranks that are the whole world have one share in
common. To step all rows alike they exchange the gradients of the rows that either touched, once;
with a share each, they would exchange gradients and then rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["TierLayout"]


class TierLayout:
    """The `count` positions of a tier, dealt out to S shares. Each rank of a node has a share of
    its own, or all ranks have one in common.

    Position p is row p // S of share p mod S, so that rows that are hot at the same time (low ids,
    say) are spread. A share has room for `share_rows` rows, the same on all ranks:

        address = share · share_rows + row in the share

    The positions 0, 1, 2, 3 of 3 shares are the rows 0 of the shares 0, 1, 2 and row 1 of share 0:
    a share has room for 2 rows, and they have the addresses 0, 2, 4, 1.
    """

    def __init__(self, count: int, shares: int) -> None:
        self.count = count
        self.shares = shares
        self.share_rows = -(-count // shares)

    @property
    def num_addresses(self) -> int:
        return self.share_rows * self.shares

    def address(self, positions: Tensor) -> Tensor:
        """[n]: the addresses of `positions` [n] int64, which count the rows share by share; int32
        where they fit, since an update holds one for each id. With one share they are the
        positions."""
        size = self.shares
        if size == 1:
            return positions
        kind = torch.int32 if self.num_addresses < 1 << 31 else torch.int64
        addresses = positions.to(kind, copy=True)
        if size & (size - 1) == 0:  # divisions take twice as long
            rows = addresses >> size.bit_length() - 1
            return addresses.bitwise_and_(size - 1).mul_(self.share_rows).add_(rows)
        rows = addresses // size
        return addresses.remainder_(size).mul_(self.share_rows).add_(rows)
