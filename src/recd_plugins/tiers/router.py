"""Which tier an id is read from, and its position there: 1.45 bits a row of the tables.

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

from recd_plugins.sparse.rows.memory import prefetch
from recd_plugins.tiers.ids.bitmap import RankedBitmap, has_bit, members_before, place_of, word_of

__all__ = ["Hits", "RoutedIds", "Router", "Segments"]

I64: TypeAlias = npt.NDArray[np.int64]
U64s: TypeAlias = npt.NDArray[np.uint64]

U64 = np.uint64
ONE = U64(1)
BLOCK = 256
"""Ids that are routed at a time: what is known of them stays in the cache."""
NUMBER = U64(8)
"""Bits that an id's number in its block takes."""


@dataclass(frozen=True)
class Segments:
    """N ids of S features, one feature after another: whose they are."""

    lengths: tuple[int, ...]
    """How many ids each feature has; they sum to N."""
    tables: tuple[int, ...]
    """Each feature's table, by its number in the router; -1 for one that it does not know."""


class Hits(NamedTuple):
    """The ids that a tier has."""

    at: Tensor
    """[n] int64, ascending: which of the N ids."""
    positions: Tensor
    """[n] int64: where they are in the tier."""


class RoutedIds(NamedTuple):
    """Where each of N ids goes."""

    passed: Tensor
    """[n] int64, ascending: which of the N ids pass on to the canonical table."""
    replicated: Hits
    """Those with a copy on every rank."""
    per_node: Hits
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

    def route(self, ids: Tensor, segments: Segments) -> RoutedIds:
        """Where `ids` [N] int64 go. Ids beyond their table pass: TorchRec judges them."""
        if ids.is_cuda:
            return self.route_by_ops(ids, segments)
        parts = _route(
            ids.contiguous().numpy(),
            np.array(segments.lengths, np.int64),
            *self._placed(segments),
            self._hot.words.numpy(),
            self._hot.ranks.numpy(),
            self._replicated.words.numpy(),
            self._replicated.ranks.numpy(),
            0 < self._replicated.count < self._hot.count,
            self._replicated.count > 0,
        )
        passed, at, positions, node_at, node_positions = map(torch.from_numpy, parts)
        return RoutedIds(passed, Hits(at, positions), Hits(node_at, node_positions))

    def route_by_ops(self, ids: Tensor, segments: Segments) -> RoutedIds:
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
        return RoutedIds(
            (~hot).nonzero().squeeze(1),
            Hits(at, self._replicated.rank(order[at])),
            Hits(node_at, node_order - self._replicated.rank(node_order)),
        )

    def _placed(self, segments: Segments) -> tuple[I64, I64]:
        """Of each feature's table: its first row in the space of rows, and its rows (or 0)."""
        tables = segments.tables
        starts = [self._starts[table] if table >= 0 else 0 for table in tables]
        sizes = [self._num_rows[table] if table >= 0 else 0 for table in tables]
        return np.array(starts, np.int64), np.array(sizes, np.int64)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _route(
    ids: I64,
    lengths: I64,
    starts: I64,
    sizes: I64,
    words: I64,
    ranks: I64,
    tier_words: I64,
    tier_ranks: I64,
    two_tiers: bool,
    all_replicated: bool,
) -> Any:
    """passed, replicated (which, positions), per node (which, positions).

    A block of ids is taken in passes: the first only asks for their words, so that the
    processor has as many cache misses under way as it can. No branch depends on an id.
    """
    passed, at, positions, at_node, node_positions = (
        np.empty(ids.size, np.int64),
        np.empty(ids.size, np.int64),
        np.empty(ids.size, np.int64),
        np.empty(ids.size, np.int64),
        np.empty(ids.size, np.int64),
    )
    known, places, word = np.empty(BLOCK, U64), np.empty(BLOCK, U64), np.empty(BLOCK, U64)
    hot, codes, replicated = np.empty(BLOCK, U64), np.empty(BLOCK, U64), np.empty(BLOCK, U64)
    lists = np.empty(BLOCK + 1, U64), np.empty(BLOCK + 1, U64), np.empty(BLOCK + 1, U64)
    num_passed = num_replicated = num_per_node = first = U64(0)
    for segment in range(lengths.size):
        start, size = U64(starts[segment]), U64(sizes[segment])
        end = first + U64(lengths[segment])
        while first < end:
            count = min(end - first, U64(BLOCK))
            i = U64(0)
            while i < count:
                number = U64(ids[first + i])
                known[i] = number < size  # a negative id is huge
                row = start + number if known[i] else U64(0)
                at_word = word_of(row)
                prefetch(words, at_word, at_word + ONE)
                word[i], places[i] = at_word, place_of(ranks, row, at_word)
                i += ONE
            i = U64(0)
            while i < count:
                word[i] = words[word[i]]
                i += ONE
            for j in range(count):
                hot[j] = has_bit(word[j], places[j]) & known[j]
                codes[j] = members_before(word[j], places[j]) * hot[j]
            if two_tiers:
                _tell_apart(tier_words, tier_ranks, count, hot, codes, replicated, word, places)
            else:
                for j in range(count):
                    replicated[j] = hot[j] * U64(all_replicated)
                    codes[j] = (codes[j] << NUMBER) | U64(j)
            counts = _by_tier(count, hot, codes, replicated, lists)
            for j in range(counts[0]):
                passed[num_passed + U64(j)] = first + lists[0][j]
            _unpack(lists[1], counts[1], first, at, positions, num_replicated)
            _unpack(lists[2], counts[2], first, at_node, node_positions, num_per_node)
            num_passed += counts[0]
            num_replicated += counts[1]
            num_per_node += counts[2]
            first += count
    return (
        passed[:num_passed],
        at[:num_replicated],
        positions[:num_replicated],
        at_node[:num_per_node],
        node_positions[:num_per_node],
    )


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _tell_apart(
    words: I64,
    ranks: I64,
    count: np.uint64,
    hot: U64s,
    codes: U64s,
    replicated: U64s,
    word: U64s,
    places: U64s,
) -> None:
    """Of hot rows, by their rank among them, whether they are replicated, and the position."""
    i = U64(0)
    while i < count:
        at_word = word_of(codes[i])
        places[i] = place_of(ranks, codes[i], at_word)
        word[i] = words[at_word]
        i += ONE
    for j in range(count):
        replicated[j] = has_bit(word[j], places[j]) & hot[j]
        others = members_before(word[j], places[j])
        position = others if replicated[j] else codes[j] - others
        codes[j] = (position << NUMBER) | U64(j)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _by_tier(
    count: np.uint64, hot: U64s, codes: U64s, replicated: U64s, lists: tuple[U64s, U64s, U64s]
) -> Any:
    """A block's numbers that pass, and its codes of each tier; how many each of these has.

    An id is written to all of them, but only its own goes on to the next place: so each list
    has a place to spare.
    """
    i = passed = everywhere = shared = U64(0)
    while i < count:
        code, is_hot, everywhere_too = codes[i], hot[i], replicated[i]
        lists[0][passed] = i
        lists[1][everywhere] = code
        lists[2][shared] = code
        passed += ONE - is_hot
        everywhere += everywhere_too
        shared += is_hot - everywhere_too
        i += ONE
    return passed, everywhere, shared


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _unpack(
    codes: U64s, count: np.uint64, first: np.uint64, at: I64, positions: I64, start: np.uint64
) -> None:
    """2^8 · position + number in the block, of each code."""
    for j in range(count):
        at[start + U64(j)] = first + (codes[j] & U64(BLOCK - 1))
        positions[start + U64(j)] = codes[j] >> NUMBER
