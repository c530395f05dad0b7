"""Rows that are gathered from the columns of a window into one block.

All of this runs on CPU, on the calling thread or on those of an executor that the caller gives.
torch's own cat and index would wake torch's threads: they belong to the model, and waiting for them
costs more than they save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.jagged import HeldOnce, Jagged, WeightedJagged
from recd_plugins.sparse.rows.gather import AHEAD, WHOLE, all_one, copy_row
from recd_plugins.sparse.rows.memory import array_like, prefetch

__all__ = [
    "Column",
    "Each",
    "Part",
    "RowBlock",
    "gather_blocks",
    "is_scored",
    "join_blocks",
    "weights_of",
]

I64: TypeAlias = npt.NDArray[np.int64]
I32: TypeAlias = npt.NDArray[np.int32]
Numbers: TypeAlias = npt.NDArray[Any]
"""Numbers of rows: int32, or int64 if there may be too many rows for that."""
F32: TypeAlias = npt.NDArray[np.float32]
Part: TypeAlias = "Jagged | HeldOnce | WeightedJagged"
Column: TypeAlias = "Sequence[Part]"
"""The rows of a feature, in parts: all parts have weights, or none has."""
Each: TypeAlias = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]
"""Calls a function for each number: `map`, or the `map` of an executor."""


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
    scored = any(map(is_scored, columns))
    weights = [np.ones(numel, np.float32) for numel in numels.sum(axis=0)] if scored else []
    of_ids, of_weights = _targets(values, numels), _targets(weights, numels)

    def copy(feature: int) -> None:
        # Feature by feature: the rows of one feature fit the cache, those of all do not.
        parts, order = columns[feature], (rows, lengths[feature], cuts)
        found = _LaidOut.of(parts, [part.values for part in parts])
        found.copy(*order, of_ids[feature], values[0])
        if is_scored(parts):
            found = _LaidOut.of(parts, [torch.from_numpy(weights_of(part)) for part in parts])
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


def is_scored(parts: Column) -> bool:
    return any(isinstance(part, WeightedJagged) and part.weights is not None for part in parts)


def weights_of(part: Part) -> F32:
    """[N] the weights of a part of a scored feature."""
    assert isinstance(part, WeightedJagged)
    weights: F32 = part.weighing(torch.float32).numpy().astype(np.float32, copy=False)
    return weights


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
