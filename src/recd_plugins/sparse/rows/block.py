"""The rows that some samples have of many features: a KJT without its keys, in numpy.

All on CPU, on the thread that calls: torch's own cat and index would wake its threads. Those
belong to the model, and to wait for them costs more than they save.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.sparse.jagged import Jagged, Scratch, concat

__all__ = ["Block", "blocks", "join"]

I64: TypeAlias = npt.NDArray[np.int64]
I32: TypeAlias = npt.NDArray[np.int32]


class Block(NamedTuple):
    """S rows of each of K features."""

    values: I64
    """[lengths.sum()] ids, feature after feature."""
    lengths: I32
    """[K, S]."""

    def kjt(self, keys: Sequence[str]) -> KeyedJaggedTensor:
        """As a KJT of K keys, on the same memory."""
        return KeyedJaggedTensor(
            keys=list(keys),
            values=torch.from_numpy(self.values),
            lengths=torch.from_numpy(self.lengths.reshape(-1)),
            stride=self.lengths.shape[1],
        )


def blocks(
    columns: Sequence[Sequence[Jagged]], rows: I64, sizes: Sequence[int], scratch: Scratch
) -> list[Block]:
    """Rows `rows` [N], in this order, cut into blocks of `sizes`.

    `columns` are the features; the rows of each come in parts, the same rows for all of them.
    """
    cuts = np.cumsum(sizes)[:-1]
    if not columns:
        return [Block(np.empty(0, np.int64), np.empty((0, size), np.int32)) for size in sizes]
    lengths = np.stack([_lengths(parts) for parts in columns]).take(rows, axis=1)
    numels = np.add.reduceat(lengths, [0, *cuts], axis=1, dtype=np.int64)  # [K, blocks]
    values = [np.empty(numel, np.int64) for numel in numels.sum(axis=0)]
    ends = numels.cumsum(axis=0)
    spans = [np.stack(span, axis=1).tolist() for span in zip(ends - numels, ends, strict=True)]
    chosen = np.split(rows, cuts)
    for parts, span in zip(columns, spans, strict=True):
        # Feature by feature, since the rows of one fit the cache where those of all do not.
        ids, counts = concat(parts, scratch) if len(parts) > 1 else parts[0]
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts.numpy(), out=offsets[1:])
        source = ids.numpy()
        for out, some, (start, end) in zip(values, chosen, span, strict=True):
            _copy(source, offsets, some, out[start:end])
    return [Block(*one) for one in zip(values, np.split(lengths, cuts, axis=1), strict=True)]


def join(parts: Sequence[Block]) -> Block:
    """The rows of each feature, one part after another; of one part, its own memory."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts], axis=1)
    cuts = [part.lengths.sum(axis=1, dtype=np.int64).cumsum()[:-1] for part in parts]
    columns = zip(
        *(np.split(part.values, cut) for part, cut in zip(parts, cuts, strict=True)), strict=True
    )
    values = [values for column in columns for values in column] if len(lengths) else []
    return Block(np.concatenate([np.empty(0, np.int64), *values]), lengths)


def _lengths(parts: Sequence[Jagged]) -> I32:
    lengths: I32 = np.concatenate(
        [part.lengths.numpy() for part in parts], dtype=np.int32, casting="same_kind"
    )
    return lengths


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _copy(values: npt.NDArray[Any], offsets: I64, rows: I64, out: I64) -> None:
    """Lays rows `values[offsets[r] : offsets[r + 1]]`, for each r of `rows`, end to end."""
    at = 0
    for row in rows:
        source = values[offsets[row] : offsets[row + 1]]
        target = out[at : at + len(source)]
        for i in range(len(source)):
            target[i] = source[i]
        at += len(source)
