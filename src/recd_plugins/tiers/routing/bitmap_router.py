"""The router of a CPU finds the tier that an id is read from, and its position there. It takes 1.45
bits for each row of the tables; in huge ones, 30 bytes for each row that has a replica.

All tables of a router lie one after another in one space of rows. A bitmap holds the rows that
have replicas; a second one, over these alone, says which of the two tiers has each. A tier's
positions count its rows in ascending order:

    n = rank of the row in the first,  p = rank of n in the second
    position = p  in `replicated`,  n - p  in `per_node`

Say that rows 1, 3 and 6 have replicas, and 1 and 6 of them are replicated:

    row    n    replicated    p    position
    1      0    yes           0    0 in `replicated`
    3      1    no            1    0 in `per_node`
    6      2    yes           1    1 in `replicated`

Of a huge table, whose bits would take more memory, that space has only the rows that have replicas,
in ascending order, and slots say which of these an id is. On CUDA, `SortedRouter` stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.planning.prices.router_memory import is_listed
from recd_plugins.sparse.rows.memory import prefetch
from recd_plugins.sparse.rows.slots import numbers_in, slot_of, slots_of
from recd_plugins.tiers.routing.ranked_bitmap import (
    RankedBitmap,
    has_bit,
    members_before,
    rank_and_bit,
    word_of_row,
)
from recd_plugins.tiers.routing.routed_ids import Hits, RoutedIds, Segments

__all__ = ["BitmapRouter"]

I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
U64s: TypeAlias = npt.NDArray[np.uint64]

U64 = np.uint64
ONE = U64(1)
MADE = 1 << 14
"""Rows that are put into a bitmap at a time: what that takes beside stays in the cache."""
BLOCK = 256
"""Ids that are routed at a time: what is known of them stays in the cache."""
NUMBER = U64(8)
"""Bits that an id's number in its block takes."""


class BitmapRouter:
    """Routes ids of tables of which some rows are replicated on every rank or in every node."""

    def __init__(
        self,
        num_rows: Sequence[int],
        replicated: Sequence[Tensor],
        per_node: Sequence[Tensor],
    ) -> None:
        """The tables have `num_rows` rows, of which each has these (int64) in either tier."""
        self._num_rows = tuple(num_rows)
        self._listed = _Listed(num_rows, replicated, per_node)
        self._starts = tuple(accumulate(map(self._listed.space, range(len(num_rows))), initial=0))

        def numbers(tier: Sequence[Tensor]) -> Iterator[Tensor]:
            """The rows of a tier in the space of rows, `MADE` at a time."""
            for table, rows in enumerate(tier):
                for some in rows.split(MADE):
                    yield self._listed.numbers(table, some) + self._starts[table]

        every = chain(numbers(replicated), numbers(per_node))
        self._copied = RankedBitmap(every, self._starts[-1])
        ranks = map(self._copied.rank, numbers(replicated))
        self._replicated = RankedBitmap(ranks, self._copied.count)
        self._listed.forget()

    @property
    def nbytes(self) -> int:
        return self._copied.nbytes + self._replicated.nbytes + self._listed.nbytes

    def route(self, ids: Tensor, segments: Segments) -> RoutedIds:
        """Find the rows of `ids` [N] int64. Ids of no row miss, and are counted."""
        *parts, outside = _route(
            ids.contiguous().numpy(),
            np.array(segments.lengths, np.int64),
            np.array(segments.of_each(self._starts), np.int64),
            np.array(segments.of_each(self._num_rows), np.int64),
            *self._listed.of_tables(segments.tables),
            self._listed.slots,
            self._listed.number_of_slot,
            self._copied.words.numpy(),
            self._copied.ranks.numpy(),
            self._replicated.words.numpy(),
            self._replicated.ranks.numpy(),
            0 < self._replicated.count < self._copied.count,
            self._replicated.count > 0,
        )
        missed_lengths = np.diff(np.searchsorted(parts[0], np.cumsum(segments.lengths)), prepend=0)
        missed, at, positions, node_at, node_positions = map(torch.from_numpy, parts)
        return RoutedIds(
            missed,
            Hits(at, positions),
            Hits(node_at, node_positions),
            int(outside),
            missed_lengths.tolist(),
        )


class _Listed:
    """The rows that have replicas, of the huge tables whose bits would take more memory."""

    def __init__(
        self, num_rows: Sequence[int], replicated: Sequence[Tensor], per_node: Sequence[Tensor]
    ) -> None:
        self._num_rows = tuple(num_rows)
        self._rows: dict[int, Tensor] = {}
        """[n] of each such table, ascending; row 0 where none has a replica."""
        self._slots: dict[int, tuple[int, int]] = {}
        """Where the slots of each such table begin, and how many it has."""
        slots, numbers, start = [np.empty(0, np.uint64)], [np.empty(0, np.int32)], 0
        for table, tiers in enumerate(zip(replicated, per_node, strict=True)):
            if not is_listed(num_rows[table], sum(map(len, tiers))):
                continue
            rows = torch.cat(list(tiers)).sort().values
            rows = self._rows[table] = rows if len(rows) else rows.new_zeros(1)
            slots.append(slots_of(rows.numpy()))
            numbers.append(numbers_in(slots[-1], rows.numpy()))
            self._slots[table] = start, len(slots[-1])
            start += len(slots[-1])
        self._spaces = {table: len(rows) for table, rows in self._rows.items()}
        self.slots, self.number_of_slot = np.concatenate(slots), np.concatenate(numbers)

    def forget(self) -> None:
        """Keep the rows in slots alone."""
        self._rows.clear()

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes + self.number_of_slot.nbytes

    def space(self, table: int) -> int:
        """The rows that the table takes in the space of rows."""
        return self._spaces.get(table, self._num_rows[table])

    def numbers(self, table: int, rows: Tensor) -> Tensor:
        """Rows of the table as numbers in its part of the space: their own, or their places among
        those that are listed."""
        return torch.searchsorted(self._rows[table], rows) if table in self._rows else rows

    def of_tables(self, tables: Sequence[int]) -> tuple[I64, I64]:
        """Where the slots of each feature's table begin [F], and how many it has (or 0) [F]."""
        if not self._slots:
            nothing = np.zeros(len(tables), np.int64)
            return nothing, nothing
        begins_and_sizes = [self._slots.get(table, (0, 0)) for table in tables]
        begins, sizes = np.array(begins_and_sizes, np.int64).reshape(-1, 2).T.copy()
        return begins, sizes


@kernel
def _route(
    ids: I64,
    lengths: I64,
    starts: I64,
    sizes: I64,
    slot_starts: I64,
    num_slots: I64,
    slots: U64s,
    number_of_slot: I32,
    words: I64,
    ranks: I64,
    tier_words: I64,
    tier_ranks: I64,
    two_tiers: bool,
    all_replicated: bool,
) -> Any:
    """Returns missed, replicated (which, positions), per node (which, positions), and how many
    ids are of no row.

    `starts` and `sizes` are those of each feature's table. `slot_starts` and `num_slots` say which
    of all `slots` the table has, if any, and `number_of_slot` has the number of each slot's row.
    `words` and `ranks` are the bitmap of the rows that have replicas, `tier_words` and `tier_ranks`
    that of the replicated rows among these. Without `two_tiers` all are in one tier, and the second
    bitmap is not read.

    A block of ids is taken in passes: the first only asks for their words, so that the
    processor has as many cache misses under way as it can. No branch depends on an id.
    """
    missed, at, positions, at_node, node_positions = (
        np.empty(ids.size, np.int64),
        np.empty(ids.size, np.int64),
        np.empty(ids.size, np.int64),
        np.empty(ids.size, np.int64),
        np.empty(ids.size, np.int64),
    )
    known, packed, word = np.empty(BLOCK, U64), np.empty(BLOCK, U64), np.empty(BLOCK, U64)
    hit, codes, replicated = np.empty(BLOCK, U64), np.empty(BLOCK, U64), np.empty(BLOCK, U64)
    lists = np.empty(BLOCK + 1, U64), np.empty(BLOCK + 1, U64), np.empty(BLOCK + 1, U64)
    num_missed = num_replicated = num_per_node = outside = first = U64(0)
    for segment in range(lengths.size):
        start, size = U64(starts[segment]), U64(sizes[segment])
        slot_start, of_table = U64(slot_starts[segment]), U64(num_slots[segment])
        end = first + U64(lengths[segment])
        while first < end:
            count = min(end - first, U64(BLOCK))
            if of_table:
                outside += _ask_slots(
                    ids[first : first + count],
                    size,
                    slots,
                    slot_start,
                    of_table,
                    number_of_slot,
                    start,
                    ranks,
                    known,
                    word,
                    packed,
                )
            i = count if of_table else U64(0)
            while i < count:
                number = U64(ids[first + i])
                known[i] = number < size  # a negative id is huge
                outside += ONE - known[i]
                row = start + number if known[i] else U64(0)
                at_word = word_of_row(row)
                prefetch(words, at_word, at_word + ONE)
                word[i], packed[i] = at_word, rank_and_bit(ranks, row, at_word)
                i += ONE
            i = U64(0)
            while i < count:
                word[i] = words[word[i]]
                i += ONE
            for j in range(count):
                hit[j] = has_bit(word[j], packed[j]) & known[j]
                codes[j] = members_before(word[j], packed[j]) * hit[j]
            if two_tiers:
                _split_tiers(tier_words, tier_ranks, count, hit, codes, replicated, word, packed)
            else:
                for j in range(count):
                    replicated[j] = hit[j] * U64(all_replicated)
                    codes[j] = (codes[j] << NUMBER) | U64(j)
            counts = _by_tier(count, hit, codes, replicated, lists)
            for j in range(counts[0]):
                missed[num_missed + U64(j)] = first + lists[0][j]
            _unpack(lists[1], counts[1], first, at, positions, num_replicated)
            _unpack(lists[2], counts[2], first, at_node, node_positions, num_per_node)
            num_missed += counts[0]
            num_replicated += counts[1]
            num_per_node += counts[2]
            first += count
    return (
        missed[:num_missed],
        at[:num_replicated],
        positions[:num_replicated],
        at_node[:num_per_node],
        node_positions[:num_per_node],
        outside,
    )


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _ask_slots(
    ids: I64,
    size: np.uint64,
    slots: U64s,
    slot_start: np.uint64,
    num_slots: np.uint64,
    number_of_slot: I32,
    start: np.uint64,
    ranks: I64,
    known: U64s,
    word: U64s,
    packed: U64s,
) -> Any:
    """The first pass over a block of ids of a table whose rows are in slots; how many are of no
    row."""
    outside = U64(0)
    for i in range(len(ids)):
        number = U64(ids[i])
        outside += ONE - U64(number < size)
        slot = slot_of(number, slot_start, num_slots, slots)
        known[i] = slots[slot] == number
        row = start + U64(number_of_slot[slot])
        word[i] = word_of_row(row)
        packed[i] = rank_and_bit(ranks, row, word[i])
    return outside


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _split_tiers(
    words: I64,
    ranks: I64,
    count: np.uint64,
    hit: U64s,
    codes: U64s,
    replicated: U64s,
    word: U64s,
    packed: U64s,
) -> None:
    """Split hits by tier, given the rank of each among the rows that have replicas, `codes`; these
    become positions, and what `_unpack` takes."""
    i = U64(0)
    while i < count:
        at_word = word_of_row(codes[i])
        packed[i] = rank_and_bit(ranks, codes[i], at_word)
        word[i] = words[at_word]
        i += ONE
    for j in range(count):
        replicated[j] = has_bit(word[j], packed[j]) & hit[j]
        others = members_before(word[j], packed[j])
        position = others if replicated[j] else codes[j] - others
        codes[j] = (position << NUMBER) | U64(j)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _by_tier(
    count: np.uint64, hit: U64s, codes: U64s, replicated: U64s, lists: tuple[U64s, U64s, U64s]
) -> Any:
    """Lists the numbers of a block's ids that miss, and the codes of each tier; returns how many.

    An id is written to all of them, but only its own goes on to the next entry: so each list
    has an entry to spare.
    """
    i = missed = at_replicated = at_per_node = U64(0)
    while i < count:
        code, is_hit, is_replicated = codes[i], hit[i], replicated[i]
        lists[0][missed] = i
        lists[1][at_replicated] = code
        lists[2][at_per_node] = code
        missed += ONE - is_hit
        at_replicated += is_replicated
        at_per_node += is_hit - is_replicated
        i += ONE
    return missed, at_replicated, at_per_node


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _unpack(
    codes: U64s, count: np.uint64, first: np.uint64, at: I64, positions: I64, start: np.uint64
) -> None:
    """Split each code, 2^8 · position + number in the block."""
    for j in range(count):
        at[start + U64(j)] = first + (codes[j] & U64(BLOCK - 1))
        positions[start + U64(j)] = codes[j] >> NUMBER
