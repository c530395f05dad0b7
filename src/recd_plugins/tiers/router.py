"""Which tier an id is read from, and its position there: 1.5 bits a row of the tables.

All tables of a router lie one after another in one space of rows. A bitmap holds the hot
rows; a second one, over the hot rows alone, tells the two tiers apart. A tier's positions
count its rows in ascending order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.tiers.bitmap import RankedBitmap, has_bit, ones_before

__all__ = ["Landed", "Routed", "Router", "Segments"]

I64: TypeAlias = npt.NDArray[np.int64]
I32: TypeAlias = npt.NDArray[np.int32]

U64 = np.uint64
PASSED, REPLICATED, PER_NODE = U64(0), U64(1), U64(2)
BLOCK = 256
"""Ids that are routed at a time: what is known of them stays in the cache."""


@dataclass(frozen=True)
class Segments:
    """N ids of S features, one feature after another: whose they are."""

    lengths: tuple[int, ...]
    """How many ids each feature has; they sum to N."""
    tables: tuple[int, ...]
    """Each feature's table, by its number in the router; -1 for one that it does not know."""


class Landed(NamedTuple):
    """The ids that a tier has."""

    at: Tensor
    """[n] int64, ascending: which of the N ids."""
    positions: Tensor
    """[n] int64: where they are in the tier."""


class Routed(NamedTuple):
    """Where each of N ids goes."""

    passed: Tensor
    """[n] int64, ascending: which of the N ids pass on to the canonical table."""
    replicated: Landed
    """Those with a copy on every rank."""
    per_node: Landed
    """Those with a copy in every node."""


class Router:
    """Routes ids of tables of which some rows are replicated on every rank or in every node."""

    def __init__(
        self,
        num_rows: Sequence[int],
        replicated: Sequence[Tensor],
        per_node: Sequence[Tensor],
        device: torch.device | None = None,
    ) -> None:
        """Of tables with `num_rows` rows; the rows (int64) that each has in either tier."""
        self._num_rows = tuple(num_rows)
        self._starts = tuple(accumulate(num_rows, initial=0))
        everywhere, shared = (
            torch.cat(
                [torch.empty(0, dtype=torch.int64)]
                + [rows + start for rows, start in zip(tier, self._starts, strict=False)]
            ).to(device)
            for tier in (replicated, per_node)
        )
        self._hot = RankedBitmap(torch.cat([everywhere, shared]), self._starts[-1])
        self._replicated = RankedBitmap(self._hot.rank(everywhere), self._hot.count)

    @property
    def nbytes(self) -> int:
        return self._hot.nbytes + self._replicated.nbytes

    def route(self, ids: Tensor, segments: Segments) -> Routed:
        """Where `ids` [N] int64 go. Ids beyond their table pass: TorchRec judges them."""
        if ids.is_cuda:
            return self.route_by_ops(ids, segments)
        codes, num_replicated, num_per_node = _codes(
            ids.contiguous().numpy(),
            np.array(segments.lengths, np.int64),
            *self._placed(segments),
            self._hot.words.numpy(),
            self._hot.ranks.numpy(),
            self._replicated.words.numpy(),
            self._replicated.ranks.numpy(),
        )
        # numba's integers come back as Python's, which it would take for signed ones.
        parts = _by_tier(codes, U64(num_replicated), U64(num_per_node))
        passed, at, positions, node_at, node_positions = map(torch.from_numpy, parts)
        return Routed(passed, Landed(at, positions), Landed(node_at, node_positions))

    def route_by_ops(self, ids: Tensor, segments: Segments) -> Routed:
        """`route` in torch's own operations, wherever the ids live."""
        lengths = torch.tensor(segments.lengths, dtype=torch.int64, device=ids.device)
        starts, sizes = (
            torch.from_numpy(each).to(ids.device).repeat_interleave(lengths, output_size=len(ids))
            for each in self._placed(segments)
        )
        known = (ids >= 0) & (ids < sizes)
        rows = torch.where(known, ids + starts, 0)
        hot = known & self._hot.holds(rows)
        order = self._hot.rank(rows)
        replicated = hot & self._replicated.holds(torch.where(hot, order, 0))
        at, node_at = (tier.nonzero().squeeze(1) for tier in (replicated, hot & ~replicated))
        node_order = order[node_at]
        return Routed(
            (~hot).nonzero().squeeze(1),
            Landed(at, self._replicated.rank(order[at])),
            Landed(node_at, node_order - self._replicated.rank(node_order)),
        )

    def _placed(self, segments: Segments) -> tuple[I64, I64]:
        """Of each feature's table: its first row in the space of rows, and its rows (or 0)."""
        tables = segments.tables
        starts = [self._starts[table] if table >= 0 else 0 for table in tables]
        sizes = [self._num_rows[table] if table >= 0 else 0 for table in tables]
        return np.array(starts, np.int64), np.array(sizes, np.int64)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _codes(
    ids: I64,
    lengths: I64,
    starts: I64,
    sizes: I64,
    words: I64,
    ranks: I32,
    tier_words: I64,
    tier_ranks: I32,
) -> Any:
    """4 · position + tier for each id, and how many each tier has.

    A block of ids is taken in passes: the first does no more than read, so that the processor
    has as many cache misses under way as it can. No branch depends on an id.
    """
    codes = np.empty(ids.size, np.int64)
    rows, found, before = np.empty(BLOCK, U64), np.empty(BLOCK, U64), np.empty(BLOCK, U64)
    hot, orders = np.empty(BLOCK, U64), np.empty(BLOCK, U64)
    num_hot = num_replicated = U64(0)
    first = 0
    for segment in range(lengths.size):
        start, size = U64(starts[segment]), U64(sizes[segment])
        end = first + lengths[segment]
        while first < end:
            count = min(end - first, BLOCK)
            for i in range(count):
                known = U64(U64(ids[first + i]) < size)  # a negative id is huge
                row = (start + U64(ids[first + i])) * known
                word = row >> U64(6)
                rows[i], hot[i] = row, known
                found[i], before[i] = U64(words[word]), U64(ranks[word])
            for i in range(count):
                hot[i] &= has_bit(found[i], rows[i])
                orders[i] = (before[i] + ones_before(found[i], rows[i])) * hot[i]
            for i in range(count):
                order = orders[i]
                tier_word = U64(tier_words[order >> U64(6)])
                replicated = has_bit(tier_word, order) & hot[i]
                others = U64(tier_ranks[order >> U64(6)]) + ones_before(tier_word, order)
                position = others * replicated + (order - others) * (U64(1) - replicated)
                codes[first + i] = (position << U64(2)) | (
                    REPLICATED * replicated + PER_NODE * (hot[i] - replicated)
                )
                num_hot += hot[i]
                num_replicated += replicated
            first += count
    return codes, num_replicated, num_hot - num_replicated


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _by_tier(codes: I64, num_replicated: np.uint64, num_per_node: np.uint64) -> Any:
    """passed, replicated (which, positions), per node (which, positions).

    An id is written to all of them, but only its own tier's goes on to the next place: so
    each has a place to spare.
    """
    passed = np.empty(U64(codes.size) - num_replicated - num_per_node + U64(1), np.int64)
    at, at_node = (
        np.empty(num_replicated + U64(1), np.int64),
        np.empty(num_per_node + U64(1), np.int64),
    )
    positions, node_positions = np.empty_like(at), np.empty_like(at_node)
    p = r = n = U64(0)
    for i in range(codes.size):
        tier, position = U64(codes[i] & 3), codes[i] >> 2
        passed[p] = i
        p += U64(tier == PASSED)
        at[r], positions[r] = i, position
        r += U64(tier == REPLICATED)
        at_node[n], node_positions[n] = i, position
        n += U64(tier == PER_NODE)
    return passed[:-1], at[:-1], positions[:-1], at_node[:-1], node_positions[:-1]
