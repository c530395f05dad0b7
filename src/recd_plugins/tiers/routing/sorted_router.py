"""The router of a GPU: it searches for an id among the rows that have replicas, in ascending order.

All tables lie one after another in one space of rows. Each tier keeps its rows in that space
sorted, 8 bytes each, and a row's place among them is its position in the tier. A binary search is
one call of torch's, where a bitmap (`bitmap_router.py`) would take forty to count its bits: the
processor takes longer to launch them than a GPU to search.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from recd_plugins.sparse.rows.memory import numbers_on
from recd_plugins.tiers.routing.routed_ids import Hits, RoutedIds, Segments

__all__ = ["SortedRouter"]

NO_ROW = -1
"""What stands for an id that is of no row: no tier has it."""
BEHIND = 1 << 62
"""A row behind all rows, so that a search ends at some row of a tier, whatever it looks for."""
MISSES = 0
"""The way of an id that neither tier has; 1 is that of the tier `replicated`, 2 of `per_node`."""


class SortedRouter:
    """Routes ids as `BitmapRouter` does, by torch's operations alone, wherever ids live."""

    def __init__(
        self,
        num_rows: Sequence[int],
        replicated: Sequence[Tensor],
        per_node: Sequence[Tensor],
    ) -> None:
        """The tables have `num_rows` rows, of which each has these (int64) in either tier."""
        self._num_rows = tuple(num_rows)
        self._starts = tuple(accumulate(num_rows, initial=0))
        self._replicated, self._per_node = map(self._sorted, (replicated, per_node))

    @property
    def nbytes(self) -> int:
        return self._replicated.nbytes + self._per_node.nbytes

    def route(self, ids: Tensor, segments: Segments) -> RoutedIds:
        """Find the rows of `ids` [N] int64, which are waited for once. Ids of no row miss, and are
        counted."""
        if not len(ids):
            return RoutedIds(ids, Hits(ids, ids), Hits(ids, ids), 0, [0] * len(segments.lengths))
        starts, sizes = segments.of_each(self._starts), segments.of_each(self._num_rows)
        ends = [*accumulate(segments.lengths)]
        lasts = [max(0, end - 1) for end in ends]
        numbers = numbers_on(ids.device, [segments.lengths, starts, sizes, lasts])
        lengths, last_of_each = numbers[0], numbers[3]
        starts_of, sizes_of = numbers[1:3].repeat_interleave(lengths, 1, output_size=len(ids))
        outside = (ids < 0) | (ids >= sizes_of)
        rows = (ids + starts_of).masked_fill_(outside, NO_ROW)

        replicated_at, in_replicated = _find(self._replicated, rows)
        per_node_at, in_per_node = _find(self._per_node, rows)
        way = in_replicated.view(torch.uint8).add(in_per_node.view(torch.uint8), alpha=2)
        # All counts in one copy to the host.
        counted = torch.stack([way == MISSES, in_replicated, outside]).cumsum(1)
        up_to, *totals = counted[:, last_of_each].tolist()
        missed = [count if end else 0 for count, end in zip(up_to, ends, strict=True)]
        num_replicated, num_outside = (total[-1] for total in totals)
        # The ids of each way, in ascending order, without asking how many there are of each.
        num_per_node = len(ids) - missed[-1] - num_replicated
        by_way = way.argsort(stable=True).split([missed[-1], num_replicated, num_per_node])
        misses, at, node_at = by_way
        return RoutedIds(
            misses,
            Hits(at, replicated_at[at]),
            Hits(node_at, per_node_at[node_at]),
            num_outside,
            [stop - start for start, stop in pairwise([0, *missed])],
        )

    def _sorted(self, tier: Sequence[Tensor]) -> Tensor:
        """[n + 1]: the rows of a tier in the space of rows, ascending, and one behind them all."""
        rows = [one + start for one, start in zip(tier, self._starts, strict=False)]
        if not rows:
            return torch.full((1,), BEHIND, dtype=torch.int64, device="cpu")
        return torch.cat([torch.cat(rows).sort().values, rows[0].new_full((1,), BEHIND)])


def _find(tier: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """For each of `rows` [N], its position in a tier, and whether the tier has it."""
    if len(tier) == 1:
        return torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
    at = torch.searchsorted(tier, rows)
    return at, tier[at] == rows
