"""Jagged rows: one feature's as (values, lengths), many features' as a KeyedJaggedTensor.

Ids are gathered by `permute_1D_sparse_data`, the fastest of fbgemm's ways on CPU, feature by
feature, since a feature's rows fit the cache where all features' do not. KJTs here carry no
weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import fbgemm_gpu  # noqa: F401  # registers torch.ops.fbgemm
import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = [
    "Jagged",
    "Scratch",
    "concat",
    "select",
    "select_rows",
    "slice_rows",
    "split",
    "to_kjt",
]

MAX_INT32 = 2**31 - 1


class Jagged(NamedTuple):
    """B rows of one feature."""

    values: Tensor
    """[lengths.sum()] ids."""
    lengths: Tensor
    """[B]."""


class Scratch:
    """Memory for ids, used again and again: fresh pages cost more than the copy into them."""

    def __init__(self) -> None:
        self._values = torch.empty(0, dtype=torch.int64)

    def take(self, numel: int) -> Tensor:
        """[numel] int64, uninitialised; it takes the place of what was taken before."""
        if self._values.numel() < numel:
            self._values = torch.empty(numel + numel // 8, dtype=torch.int64)
        return self._values[:numel]


def concat(parts: Sequence[Jagged], scratch: Scratch | None = None) -> Jagged:
    """The rows of `parts`, one part after another; in `scratch`, until its next use.

    Values become int64 and lengths int32.
    """
    numel = sum(part.values.numel() for part in parts)
    values = torch.empty(numel, dtype=torch.int64) if scratch is None else scratch.take(numel)
    lengths = torch.empty(sum(part.lengths.numel() for part in parts), dtype=torch.int32)
    # numpy, since torch.cat wakes threads, which a reader should leave to the model.
    if parts:
        np.concatenate([part.values.numpy() for part in parts], out=values.numpy())
        np.concatenate(
            [part.lengths.numpy() for part in parts], out=lengths.numpy(), casting="same_kind"
        )
    return Jagged(values, lengths)


def select(jagged: Jagged, rows: Tensor) -> Jagged:
    """Rows `rows` [N], in this order, repeats included."""
    values, lengths = jagged
    if values.numel() > MAX_INT32:  # fbgemm adds lengths up in their own type
        lengths = lengths.long()
    lengths, values, _ = torch.ops.fbgemm.permute_1D_sparse_data(
        rows.to(torch.int32), lengths, values, None, None
    )
    return Jagged(values, lengths)


def split(jagged: Jagged, sizes: Sequence[int]) -> list[Jagged]:
    """Consecutive parts of `sizes` rows, as views."""
    offsets = np.zeros(jagged.lengths.numel() + 1, dtype=np.int64)
    np.cumsum(jagged.lengths.numpy(), out=offsets[1:])
    numels = np.diff(offsets[np.cumsum([0, *sizes])]).tolist()
    parts = zip(jagged.values.split(numels), jagged.lengths.split(list(sizes)), strict=True)
    return [Jagged(*part) for part in parts]


def to_kjt(columns: Mapping[str, Sequence[Jagged]]) -> KeyedJaggedTensor:
    """A KJT of each feature's parts, one after another: one copy of every value."""
    values, lengths = concat([part for column in columns.values() for part in column])
    keys = list(columns)
    stride = lengths.numel() // len(keys) if keys else 0
    return KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, stride=stride)


def slice_rows(features: KeyedJaggedTensor, start: int, stop: int) -> KeyedJaggedTensor:
    """Rows [start, stop) of every feature: one copy of their values."""
    keys, stride = features.keys(), features.stride()
    firsts = torch.arange(len(keys))[:, None] * stride
    bounds = features.offsets()[firsts + torch.tensor([[start, stop]])]
    values = [features.values()[first:last] for first, last in bounds.tolist()]
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.cat(values) if values else features.values(),
        lengths=features.lengths().view(len(keys), stride)[:, start:stop].reshape(-1),
        stride=stop - start,
    )


def select_rows(features: KeyedJaggedTensor, rows: Tensor) -> KeyedJaggedTensor:
    """Rows `rows` [N] of every feature, in this order, repeats included."""
    keys = features.keys()
    firsts = torch.arange(len(keys))[:, None] * features.stride()
    values, lengths = select(
        Jagged(features.values(), features.lengths()), (firsts + rows).view(-1)
    )
    return KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, stride=rows.numel())
