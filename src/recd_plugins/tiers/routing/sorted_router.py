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
from torch.nn.functional import pad

from recd_plugins.sparse.rows.memory import numbers_on
from recd_plugins.tiers.routing.routed_ids import Hits, RoutedIds, Segments

__all__ = ["SortedRouter"]

NO_ROW = -1
"""What stands for an id that is of no row: no tier has it."""


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
        starts, sizes = segments.of_each(self._starts), segments.of_each(self._num_rows)
        ends = [*accumulate(segments.lengths)]
        numbers = numbers_on(ids.device, [segments.lengths, starts, sizes, ends])
        lengths, ends_of = numbers[0], numbers[3]
        starts_of, sizes_of = numbers[1:3].repeat_interleave(lengths, 1, output_size=len(ids))
        known = (ids >= 0) & (ids < sizes_of)
        rows = torch.where(known, ids + starts_of, NO_ROW)

        replicated_at, in_replicated = _find(self._replicated, rows)
        per_node_at, in_per_node = _find(self._per_node, rows)
        missing = ~(in_replicated | in_per_node)
        before = pad(missing.cumsum(0), (1, 0))
        counts = torch.stack([in_replicated.sum(), known.sum()])
        num_replicated, num_known, *missed = torch.cat([counts, before[ends_of]]).tolist()
        num_missed = missed[-1] if missed else 0
        # The ids of each way, in ascending order, without asking how many there are of each.
        by_way = (in_per_node.to(torch.uint8) - missing.to(torch.uint8) + 1).argsort(stable=True)
        num_per_node = len(ids) - num_missed - num_replicated
        misses, at, node_at = by_way.split([num_missed, num_replicated, num_per_node])
        return RoutedIds(
            misses,
            Hits(at, replicated_at[at]),
            Hits(node_at, per_node_at[node_at]),
            len(ids) - num_known,
            [stop - start for start, stop in pairwise([0, *missed])],
        )

    def _sorted(self, tier: Sequence[Tensor]) -> Tensor:
        """[n]: the rows of a tier in the space of rows, ascending."""
        rows = [one + start for one, start in zip(tier, self._starts, strict=False)]
        return (
            torch.cat(rows).sort().values
            if rows
            else torch.empty(0, dtype=torch.int64, device="cpu")
        )


def _find(tier: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """For each of `rows` [N], its position in a tier, and whether the tier has it."""
    if not len(tier):
        return torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
    at = torch.searchsorted(tier, rows).clamp_(max=len(tier) - 1)
    return at, tier[at] == rows
