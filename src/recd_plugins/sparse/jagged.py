"""Jagged rows: a feature's (values, lengths), many features' KeyedJaggedTensor.

Rows of a KJT are sliced by range (a copy per feature) or gathered in any order (one
`permute_1D_sparse_data` over all features). No function here takes weighted KJTs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import fbgemm_gpu  # noqa: F401  # registers torch.ops.fbgemm
import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError

__all__ = ["Jagged", "Scratch", "concat_rows", "select_rows", "slice_rows", "split_rows", "to_kjt"]

GROUP_BYTES = 8 << 20
"""What one gather of `split_rows` writes: enough to pay for its pass over all lengths, and
little enough for malloc to use its memory again (52 MB at once take 39 ms, in groups 15)."""

MAX_VALUES = 2**31 - 1
"""fbgemm counts with the lengths' type, which is int32 as elsewhere in TorchRec."""


class Jagged(NamedTuple):
    """B rows of one feature."""

    values: Tensor
    """[lengths.sum()] ids."""
    lengths: Tensor
    """[B]."""


class Scratch:
    """Memory for int64 values, used again and again: fresh pages cost more than the copy."""

    def __init__(self) -> None:
        self._values = torch.empty(0, dtype=torch.int64)

    def take(self, numel: int) -> Tensor:
        """[numel], uninitialised; overwrites what was taken before."""
        if self._values.numel() < numel:
            self._values = torch.empty(numel + numel // 8, dtype=torch.int64)
        return self._values[:numel]


def to_kjt(
    columns: Mapping[str, Sequence[Jagged]], scratch: Scratch | None = None
) -> KeyedJaggedTensor:
    """A KJT of each feature's parts, one after another: one copy of every value.

    Values become int64 and lengths int32. With `scratch` the values lie there, until its
    next use.
    """
    parts = [part for column in columns.values() for part in column]
    numel = sum(part.values.numel() for part in parts)
    if numel > MAX_VALUES:
        raise DataError(
            f"{numel} ids are too many for one KeyedJaggedTensor (2^31 - 1): take fewer rows at "
            "a time (`reader.window`, or smaller row groups)."
        )
    values = (scratch or Scratch()).take(numel)
    lengths = torch.empty(sum(part.lengths.numel() for part in parts), dtype=torch.int32)
    # numpy, since torch.cat starts threads, which on a reader's side only get in the way.
    if parts:
        np.concatenate([part.values.numpy() for part in parts], out=values.numpy())
        np.concatenate(
            [part.lengths.numpy() for part in parts], out=lengths.numpy(), casting="same_kind"
        )
    keys = list(columns)
    stride = lengths.numel() // len(keys) if keys else 0
    return KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, stride=stride)


def slice_rows(features: KeyedJaggedTensor, start: int, stop: int) -> KeyedJaggedTensor:
    """Rows [start, stop) of every feature: one copy of their values."""
    stride, keys = features.stride(), features.keys()
    bounds = features.offsets()[
        torch.arange(len(keys))[:, None] * stride + torch.tensor([[start, stop]])
    ]
    values = [features.values()[first:last] for first, last in bounds.tolist()]
    lengths = features.lengths().view(len(keys), stride)[:, start:stop]
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.cat(values) if values else features.values(),
        lengths=lengths.reshape(-1),
        stride=stop - start,
    )


def select_rows(features: KeyedJaggedTensor, rows: Tensor) -> KeyedJaggedTensor:
    """Rows `rows` [N] of every feature, in this order, repeats included."""
    (selected,) = split_rows(features, rows, [rows.numel()])
    return selected


def split_rows(
    features: KeyedJaggedTensor,
    rows: Tensor,
    sizes: Sequence[int],
    *,
    group_bytes: int = GROUP_BYTES,
) -> Iterator[KeyedJaggedTensor]:
    """Rows `rows` [sum(sizes)] of every feature, as KJTs of `sizes` rows each.

    Lazily, about `group_bytes` per gather: the result of one is laid out KJT by KJT, and
    each of them is a view into it. With 0 every KJT has memory of its own.
    """
    keys, stride = features.keys(), features.stride()
    firsts = torch.arange(len(keys), dtype=torch.int32)[:, None] * stride
    row_bytes = features.values().numel() * features.values().element_size() / max(stride, 1)
    parts: list[Tensor] = []
    for part in rows.to(torch.int32).split(list(sizes)):
        if parts and (sum(map(len, parts)) + len(part)) * row_bytes > group_bytes:
            yield from _gather(features, firsts, parts)
            parts = []
        parts.append(part)
    if parts:
        yield from _gather(features, firsts, parts)


def _gather(
    features: KeyedJaggedTensor, firsts: Tensor, parts: Sequence[Tensor]
) -> Iterator[KeyedJaggedTensor]:
    index = torch.cat([(firsts + part).view(-1) for part in parts])
    lengths, values, _ = torch.ops.fbgemm.permute_1D_sparse_data(
        index, features.lengths(), features.values(), None, None
    )
    start = 0
    counts = [len(firsts) * len(part) for part in parts]
    for part, rows in zip(parts, lengths.split(counts), strict=True):
        stop = start + int(rows.sum())
        yield KeyedJaggedTensor(
            keys=features.keys(), values=values[start:stop], lengths=rows, stride=len(part)
        )
        start = stop


def concat_rows(parts: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
    """The rows of KJTs with the same keys, one after another."""
    if len(parts) == 1:
        return parts[0]
    keys = parts[0].keys()
    pieces = [
        [part.values()[first:last] for first, last in pairwise(_key_offsets(part))]
        for part in parts
    ]
    values = [piece[key] for key in range(len(keys)) for piece in pieces]
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.cat(values) if values else parts[0].values(),
        lengths=torch.cat([part.lengths().view(len(keys), -1) for part in parts], 1).view(-1)
        if keys
        else parts[0].lengths(),
        stride=sum(part.stride() for part in parts),
    )


def _key_offsets(features: KeyedJaggedTensor) -> list[int]:
    """Where each key's values begin, and where the last one's end."""
    lengths = features.lengths().view(len(features.keys()), features.stride())
    return [*accumulate(lengths.sum(1).tolist(), initial=0)]
