"""The rows of a window that a reader holds: gathered, or with each different row kept once.

All of this runs on CPU, on the calling thread or on those of an executor that the caller gives.
torch's own cat and index would wake torch's threads: they belong to the model, and waiting for them
costs more than they save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.jagged import HeldOnce, Jagged, WeightedJagged
from recd_plugins.sparse.rows.gather import AHEAD, WHOLE, all_one, copy_row
from recd_plugins.sparse.rows.memory import array_like, prefetch, prefetch_behind
from recd_plugins.sparse.rows.unique import LONG, hash_row

__all__ = [
    "FEWEST_SLOTS",
    "Each",
    "Picked",
    "RowBlock",
    "RowPool",
    "gather_blocks",
    "join_blocks",
    "join_picked",
]

I64: TypeAlias = npt.NDArray[np.int64]
I32: TypeAlias = npt.NDArray[np.int32]
Numbers: TypeAlias = npt.NDArray[Any]
"""Numbers of rows: int32, or int64 if there may be too many rows for that."""


Ids: TypeAlias = npt.NDArray[Any]
"""Ids of 4 or 8 bytes."""
F32: TypeAlias = npt.NDArray[np.float32]
Part: TypeAlias = "Jagged | HeldOnce | WeightedJagged"
Column: TypeAlias = "Sequence[Part]"
"""The rows of a feature, in parts: all parts have weights, or none has."""
Each: TypeAlias = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]
"""Calls a function for each number: `map`, or the `map` of an executor."""

FEWEST_SLOTS = 1024
"""How many slots the hash table of a feature's rows has at first. It doubles as rows are found: the
rows of most features repeat, and a small table stays in the cache."""


class RowBlock(NamedTuple):
    """S rows of each of K features."""

    values: I64
    """[lengths.sum()] ids, feature after feature."""
    lengths: I32
    """[K, S]."""
    weights: F32 | None = None
    """[lengths.sum()] if a feature is scored, and the ids of other features weigh 1; else None."""

    def kjt(self, keys: Sequence[str]) -> KeyedJaggedTensor:
        """The block as a KJT of K keys, on the same memory."""
        return KeyedJaggedTensor(
            keys=list(keys),
            values=torch.from_numpy(self.values),
            # For a block of one row, reshape alone would give a view that skips others' lengths.
            lengths=torch.from_numpy(np.ascontiguousarray(self.lengths).reshape(-1)),
            weights=None if self.weights is None else torch.from_numpy(self.weights),
            stride=self.lengths.shape[1],
        )


def gather_blocks(
    columns: Sequence[Column],
    rows: I64,
    sizes: Sequence[int],
    each: Each = map,
) -> list[RowBlock]:
    """Rows `rows` [N], in this order, cut into blocks of `sizes`.

    `columns` are the features; each has the same rows, which come in parts. If `each` is an
    executor's `map`, several features are copied at a time.
    """
    cuts = np.cumsum([0, *sizes])
    if not columns:
        return [RowBlock(np.empty(0, np.int64), np.empty((0, size), np.int32)) for size in sizes]
    lengths = np.stack([_lengths(parts) for parts in columns]).take(rows, axis=1)
    numels = np.add.reduceat(lengths, cuts[:-1], axis=1, dtype=np.int64)  # [K, blocks]
    values = [np.empty(numel, np.int64) for numel in numels.sum(axis=0)]
    scored = any(map(_is_scored, columns))
    weights = [np.ones(numel, np.float32) for numel in numels.sum(axis=0)] if scored else []
    of_ids, of_weights = _targets(values, numels), _targets(weights, numels)

    def copy(feature: int) -> None:
        # Feature by feature: the rows of one feature fit the cache, those of all do not.
        parts, order = columns[feature], (rows, lengths[feature], cuts)
        found = _LaidOut.of(parts, [part.values for part in parts])
        found.copy(*order, of_ids[feature], values[0])
        if _is_scored(parts):
            found = _LaidOut.of(parts, [torch.from_numpy(_weights(part)) for part in parts])
            found.copy(*order, of_weights[feature], weights[0])

    for _ in each(copy, range(len(columns))):
        pass  # an executor's errors are raised here
    cut = np.split(lengths, cuts[1:-1], axis=1)
    scores: Sequence[F32 | None] = weights or [None] * len(values)
    return [RowBlock(*one) for one in zip(values, cut, scores, strict=True)]


class _LaidOut(NamedTuple):
    """Where the rows of a feature lie, so that rows can be copied without joining its parts."""

    numbers: Sequence[Tensor]
    """The parts' ids or weights."""
    place: I64
    """[3] one of `Addresses.places`: the memory that spans all parts."""
    begins: I64
    """[N]: where in that memory each row begins."""

    @classmethod
    def of(cls, parts: Column, numbers: Sequence[Tensor]) -> _LaidOut:
        if len({one.dtype for one in numbers}) > 1:
            numbers = [one.long() for one in numbers]
        size = numbers[0].element_size()
        numbers = [one.contiguous() for one in numbers]
        numbers = [one.clone() if one.data_ptr() % size else one for one in numbers]
        some = [one for one in numbers if one.numel()] or numbers
        first = min(one.data_ptr() for one in some)
        end = max(one.data_ptr() + size * one.numel() for one in some)
        begins = np.empty(sum(part.lengths.numel() for part in parts), np.int64)
        done = 0
        for part, one in zip(parts, numbers, strict=True):
            of_part = _begins(part)
            of_part += (one.data_ptr() - first) // size
            begins[done : done + len(of_part)] = of_part
            done += len(of_part)
        return cls(numbers, np.array([first, (end - first) // size, size]), begins)

    def copy(self, rows: I64, lengths: I32, cuts: I64, targets: I64, into: Numbers) -> None:
        """Lay the rows, which have `lengths`, end to end in the targets [blocks, 3] of their
        blocks; these have the type of `into`."""
        like = self.numbers[0][:0].numpy()
        _copy_rows(self.place, self.begins, rows, lengths, cuts, targets, like, into[:0])


def _targets(blocks: Sequence[Numbers], numels: I64) -> I64:
    """[K, blocks, 3]: the place, as in `Addresses`, of each feature's numbers in each block."""
    targets = np.empty((*numels.shape, 3), np.int64)
    if blocks:
        size = blocks[0].itemsize
        starts = numels.cumsum(axis=0) - numels
        targets[..., 0] = [block.ctypes.data for block in blocks] + starts * size
        targets[..., 1], targets[..., 2] = numels, size
    return targets


def join_blocks(parts: Sequence[RowBlock]) -> RowBlock:
    """The rows of each feature, one part after another; a single part is returned uncopied."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts], axis=1)
    cuts = [part.lengths.sum(axis=1, dtype=np.int64).cumsum()[:-1] for part in parts]

    def joined(numbers: Sequence[Numbers]) -> Numbers:
        split = (np.split(part, cut) for part, cut in zip(numbers, cuts, strict=True))
        columns = [column for of_feature in zip(*split, strict=True) for column in of_feature]
        return np.concatenate([numbers[0][:0], *columns]) if len(lengths) else numbers[0][:0]

    weights = [part.weights for part in parts if part.weights is not None]
    return RowBlock(
        joined([part.values for part in parts]),
        lengths,
        joined(weights) if weights else None,
    )


def _lengths(parts: Column) -> I32:
    lengths: I32 = np.concatenate(
        [part.lengths.numpy() for part in parts], dtype=np.int32, casting="same_kind"
    )
    return lengths


def _begins(part: Part) -> I64:
    """[N]: where in a part's numbers each row begins."""
    if isinstance(part, HeldOnce):
        return _begins(part.held).take(part.which.numpy())
    lengths = part.lengths.numpy()
    begins: I64 = np.cumsum(lengths, dtype=np.int64)
    begins -= lengths
    return begins


def _held(part: Part) -> Jagged:
    """The rows of a part as they lie in memory."""
    return part.held if isinstance(part, HeldOnce) else Jagged(part.values, part.lengths)


def _is_scored(parts: Column) -> bool:
    return any(isinstance(part, WeightedJagged) and part.weights is not None for part in parts)


def _weights(part: Part) -> F32:
    """[N] the weights of a part of a scored feature."""
    assert isinstance(part, WeightedJagged)
    weights: F32 = part.weighing(torch.float32).numpy().astype(np.float32, copy=False)
    return weights


def _pairs(part: Part) -> Jagged:
    """Each id, then the bits of its weight: rows are equal if both ids and weights are."""
    pairs = np.empty((part.values.numel(), 2), np.int64)
    pairs[:, 0] = part.values.numpy()
    pairs[:, 1] = _weights(part).view(np.int32)
    return Jagged(torch.from_numpy(pairs.reshape(-1)), 2 * part.lengths)


@kernel
def _copy_rows(
    place: I64,
    begins: I64,
    rows: I64,
    lengths: I32,
    cuts: I64,
    targets: I64,
    like: Numbers,
    into: Numbers,
) -> None:
    """Copies rows `rows[cuts[b] : cuts[b + 1]]`, of `lengths` [N], one after another into target b.
    Row r begins at `begins[r]` of the place. `like` and `into` have the types of source and
    target."""
    values = array_like(place, like)
    if all_one(lengths):
        for block in range(len(targets)):
            out, first = array_like(targets[block], into), np.uintp(cuts[block])
            for i in range(np.uintp(len(out))):
                out[i] = values[np.uintp(begins[np.uintp(rows[first + i])])]
        return
    for block in range(len(targets)):
        out, at = array_like(targets[block], into), np.uintp(0)
        in_reach = min(np.int64(len(values)), np.int64(len(out))) - WHOLE
        for n in range(np.uintp(cuts[block]), np.uintp(cuts[block + 1])):
            ahead = min(n + np.uintp(AHEAD), np.uintp(len(rows) - 1))
            later = np.uintp(begins[np.uintp(rows[ahead])])
            prefetch(values, later, later + np.uintp(lengths[ahead]))
            begin, length = np.uintp(begins[np.uintp(rows[n])]), np.uintp(lengths[n])
            copy_row(values, begin, length, out, at, in_reach)
            at += length


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
        scored = _is_scored(parts)
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
        scored = tuple(map(_is_scored, columns))
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


# Indices are unsigned: the compiler need not ask whether they count from the end, and compares
# several ids at a time.


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
