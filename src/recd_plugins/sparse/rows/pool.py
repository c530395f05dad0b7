"""The different rows of a window, each kept once, and the batches that are made of their numbers.

It runs where `blocks` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.jagged import HeldOnce, Jagged
from recd_plugins.sparse.rows.blocks import Column, Part, RowBlock, is_scored, weights_of
from recd_plugins.sparse.rows.gather import AHEAD, WHOLE, copy_row
from recd_plugins.sparse.rows.memory import prefetch, prefetch_behind
from recd_plugins.sparse.rows.unique import LONG, hash_row

__all__ = ["FEWEST_SLOTS", "Picked", "RowPool", "join_picked"]

I64: TypeAlias = npt.NDArray[np.int64]
I32: TypeAlias = npt.NDArray[np.int32]
Numbers: TypeAlias = npt.NDArray[Any]
"""Numbers of rows: int32, or int64 if there may be too many rows for that."""
Ids: TypeAlias = npt.NDArray[Any]
"""Ids of 4 or 8 bytes."""

FEWEST_SLOTS = 1024
"""How many slots the hash table of a feature's rows has at first. It doubles as rows are found: the
rows of most features repeat, and a small table stays in the cache."""


class RowPool:
    """The different rows of many features, each kept once and known by its number.

    Batches are made of row numbers, so an id is copied again only if a batch keeps it. Rows lie end
    to end; row r is `values[offsets[r] : offsets[r + 1]]`, and row 0 is empty.
    """

    def __init__(self, num_ids: int, num_rows: int, ids: npt.DTypeLike = np.int64) -> None:
        """Make room for `num_ids` ids of type `ids` and `num_rows` rows; memory is used only as far
        as it is filled."""
        self.values: Ids = np.empty(num_ids, ids)
        self.offsets = np.empty(num_rows + 2, np.int64)
        self.offsets[:2] = 0
        self.num_rows = 1
        """The number of rows, including the empty one."""
        self.numbers: type[np.signedinteger[Any]] = (
            np.int32 if num_rows < np.iinfo(np.int32).max else np.int64
        )
        """The type of the rows' numbers."""

    def add(self, parts: Column) -> Numbers:
        """[N] the number of each row of a feature, whose rows come in parts.

        Rows of one feature are equal if and only if their numbers are equal; equal rows of
        different features may have different numbers. Empty rows are row 0. The rows of a scored
        feature are kept as pairs of id and weight, and take twice the room of their ids.
        """
        num_rows = sum(part.lengths.numel() for part in parts)
        numbers = np.empty(num_rows, self.numbers)
        slots = np.empty(max(FEWEST_SLOTS, 2 << num_rows.bit_length()), self.numbers)
        hashes = np.empty(num_rows, np.uint64)
        done, first = 0, self.num_rows
        scored = is_scored(parts)
        for part in parts:
            values, lengths = _pairs(part) if scored else _held(part)
            count = lengths.numel()
            found = numbers[done : done + count]
            self.num_rows = _add(
                values.numpy(),
                lengths.numpy(),
                self.values,
                self.offsets,
                self.num_rows,
                first,
                slots,
                hashes,
                found,
            )
            if isinstance(part, HeldOnce):
                count = len(part.which)
                numbers[done : done + count] = found.take(part.which.numpy())
            done += count
        return numbers


class Picked(NamedTuple):
    """The rows of S samples, for each of K features."""

    pool: RowPool
    rows: Numbers
    """[K, S]."""
    scored: tuple[bool, ...]
    """[K]: whether a feature's rows in the pool are pairs of id and weight."""

    @classmethod
    def of(cls, columns: Sequence[Column], order: I64) -> Picked:
        """Rows `order` [S] of each feature, in this order, from a new pool.

        `columns` are the features; the rows of each come in parts.
        """
        scored = tuple(map(is_scored, columns))
        numels = [sum(part.values.numel() for part in column) for column in columns]
        numel = sum(numel << pairs for numel, pairs in zip(numels, scored, strict=True))
        parts = [part for column in columns for part in column]
        narrow = not any(scored) and all(part.values.dtype == torch.int32 for part in parts)
        ids = np.int32 if narrow else np.int64  # the type in which they were decoded
        pool = RowPool(numel, sum(part.lengths.numel() for part in parts), ids)
        rows = np.empty((len(columns), len(order)), pool.numbers)
        for column, numbers in zip(columns, rows, strict=True):
            pool.add(column).take(order, out=numbers, mode="clip")  # "raise" would buffer it
        return cls(pool, rows, scored)

    def cut(self, sizes: Sequence[int]) -> list[Picked]:
        """The samples, cut into consecutive parts of `sizes`."""
        cuts = np.cumsum(sizes)[:-1]
        split = np.split(self.rows, cuts, axis=1)
        return [Picked(self.pool, rows, self.scored) for rows in split]


def join_picked(parts: Sequence[Picked]) -> RowBlock:
    """The rows of all samples, one part after another."""
    block = _joined(parts)
    scored = parts[0].scored
    if not any(scored):
        return block
    numels = block.lengths.sum(axis=1, dtype=np.int64)
    values, weights = [], []
    for column, pairs in zip(np.split(block.values, numels.cumsum()[:-1]), scored, strict=True):
        values.append(column[::2] if pairs else column)
        bits = column[1::2].astype(np.int32).view(np.float32)
        weights.append(bits if pairs else np.ones(len(column), np.float32))
    lengths = np.where(np.array(scored)[:, None], block.lengths // 2, block.lengths)
    return RowBlock(np.concatenate(values), lengths, np.concatenate(weights))


def _joined(parts: Sequence[Picked]) -> RowBlock:
    """The rows as they lie in the pools: those of scored features as pairs of id and weight."""
    if len(parts) == 1 and len(parts[0].rows):
        return _of_one_pool(parts[0])
    sizes = [part.rows.shape[1] for part in parts]
    lengths = np.empty((len(parts[0].rows), sum(sizes)), np.int32)
    columns = np.split(lengths, np.cumsum(sizes)[:-1], axis=1)
    numels = [
        _measure(part.pool.offsets, part.rows, column)
        for part, column in zip(parts, columns, strict=True)
    ]
    every = np.stack(numels, axis=1)  # [K, parts]
    starts = every.cumsum().reshape(every.shape) - every
    values = np.empty(every.sum(), np.int64)
    for part, *places in zip(parts, starts.T.copy(), (starts + every).T.copy(), strict=True):
        _copy_numbered(part.pool.values, part.pool.offsets, part.rows, *places, values)
    return RowBlock(values, lengths)


def _of_one_pool(part: Picked) -> RowBlock:
    """`_joined` where no window ends within the batch."""
    lengths = np.empty(part.rows.shape, np.int32)
    ends = _measure(part.pool.offsets, part.rows, lengths).cumsum()
    values = np.empty(ends[-1], np.int64)
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    _copy_numbered(part.pool.values, part.pool.offsets, part.rows, starts, ends, values)
    return RowBlock(values, lengths)


def _held(part: Part) -> Jagged:
    """The rows of a part as they lie in memory."""
    return part.held if isinstance(part, HeldOnce) else Jagged(part.values, part.lengths)


def _pairs(part: Part) -> Jagged:
    """Each id, then the bits of its weight: rows are equal if both ids and weights are."""
    pairs = np.empty((part.values.numel(), 2), np.int64)
    pairs[:, 0] = part.values.numpy()
    pairs[:, 1] = weights_of(part).view(np.int32)
    return Jagged(torch.from_numpy(pairs.reshape(-1)), 2 * part.lengths)


@kernel
def _add(
    values: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    pool: Ids,
    offsets: I64,
    num_rows: int,
    first: int,
    slots: Numbers,
    hashes: npt.NDArray[np.uint64],
    numbers: Numbers,
) -> Any:
    # Two loops: in short rows, nobody could guess where there is another line to ask for.
    if len(values) >= LONG * len(lengths):
        return _add_each(
            values, lengths, pool, offsets, num_rows, first, slots, hashes, numbers, True
        )
    return _add_each(values, lengths, pool, offsets, num_rows, first, slots, hashes, numbers, False)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _add_each(
    values: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    pool: Ids,
    offsets: I64,
    num_rows: int,
    first: int,
    slots: Numbers,
    hashes: npt.NDArray[np.uint64],
    numbers: Numbers,
    long: bool,
) -> int:
    """Copies those rows that are new behind the pool's `num_rows`, and counts these anew.

    The feature's rows are numbers `first` and up, in an open hash table that is at most half
    full. A row is taken for a copy only after its ids were compared.
    """
    size = FEWEST_SLOTS
    while size < 2 * (num_rows - first + 1):
        size *= 2
    if num_rows == first:
        slots[:size] = 0
    in_reach = min(np.int64(len(values)), np.int64(len(pool))) - WHOLE
    number = np.int64(0)
    before = at = np.uintp(0)
    for row in range(np.uintp(len(lengths))):
        length = np.uintp(lengths[row])
        stop = at + length
        if long:
            prefetch_behind(values, at, stop)
        # In a clustered table the row before is the likeliest copy: one look, and no hash.
        if not (length == at - before and _equal(values, at, values, before, length)):
            number = np.int64(0)
            row_hash = hash_row(values[at:stop])
            slot = row_hash & np.uint64(size - 1)
            while length > np.uintp(0):
                number = np.int64(slots[slot])
                if number == 0:
                    number = np.int64(num_rows)
                    slots[slot] = number
                    hashes[np.uintp(number - first)] = row_hash
                    begin = np.uintp(offsets[number])
                    num_rows += 1
                    offsets[num_rows] = begin + length
                    copy_row(values, at, length, pool, begin, in_reach)
                    break
                if hashes[np.uintp(number - first)] == row_hash:
                    begin = np.uintp(offsets[np.uintp(number)])
                    same = np.uintp(offsets[np.uintp(number + 1)]) - begin == length
                    if same and _equal(values, at, pool, begin, length):
                        break
                slot = (slot + np.uint64(1)) & np.uint64(size - 1)
            if size < 2 * (num_rows - first + 1):
                size *= 2
                _fill(slots[:size], hashes[: num_rows - first], first)
        numbers[row] = number
        before, at = at, stop
    return num_rows


@kernel
def _fill(slots: Numbers, hashes: npt.NDArray[np.uint64], first: int) -> None:
    """Empties a table, and fills it with the rows from `first` on, which have these hashes."""
    mask = np.uint64(len(slots) - 1)
    slots[:] = 0
    for i in range(len(hashes)):
        slot = hashes[i] & mask
        while slots[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = first + i


@kernel
def _equal(
    left: npt.NDArray[Any],
    left_at: np.uintp,
    right: npt.NDArray[Any],
    right_at: np.uintp,
    length: np.uintp,
) -> bool:
    """Whether the `length` ids of `left` from `left_at` on are those of `right` from `right_at`."""
    differ = False
    for i in range(length):
        differ |= left[left_at + i] != right[right_at + i]
    return not differ


@kernel
def _measure(offsets: I64, rows: Numbers, lengths: I32) -> I64:
    """[K] the number of ids of each feature's rows; writes the rows' lengths to `lengths` [K,
    S]."""
    numels = np.zeros(len(rows), np.int64)
    for k in range(len(rows)):
        of_feature, into, numel = rows[k], lengths[k], np.int64(0)
        for i in range(np.uintp(rows.shape[1])):
            row = np.uintp(of_feature[i])
            length = offsets[row + np.uintp(1)] - offsets[row]
            into[i] = length
            numel += length
        numels[k] = numel
    return numels


@kernel
def _copy_numbered(
    values: Ids, offsets: I64, rows: Numbers, starts: I64, stops: I64, out: I64
) -> None:
    """Copies each feature's rows one after another into `out`, from its `starts` [K] to its `stops`
    [K]."""
    last = np.uintp(rows.shape[1] - 1)
    for k in range(len(rows)):
        of_feature, at = rows[k], np.uintp(starts[k])
        in_reach = min(np.int64(len(values)), stops[k]) - WHOLE
        for i in range(last + np.uintp(1)):
            row = np.uintp(of_feature[i])
            if row == 0:  # empty, as all behind the last unique sample are
                continue
            later = np.uintp(of_feature[min(i + np.uintp(AHEAD), last)])
            prefetch(values, np.uintp(offsets[later]), np.uintp(offsets[later + np.uintp(1)]))
            start = np.uintp(offsets[row])
            length = np.uintp(offsets[row + np.uintp(1)]) - start
            copy_row(values, start, length, out, at, in_reach)
            at += length
