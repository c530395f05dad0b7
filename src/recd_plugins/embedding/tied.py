"""Tensors whose gradients come together, like those of parts of one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torchrec.sparse.jagged_tensor import KeyedTensor

from recd_plugins.compat.outputs import LazyKeyedTensor

__all__ = ["tied", "tied_columns"]


def tied(outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same tensors. Once a loss depends on one of them, the others' gradients are zeros.

    The backward of each exchanges with the other ranks, whose losses may depend on others of them.
    Behind one node of the graph all ranks exchange for all of them, in one order. Besides, a dense
    optimizer steps its tables by gradients of zeros, but not by None.
    """
    same: tuple[Tensor, ...] = _Tie.apply(*outputs)
    return same


def tied_columns(parts: Sequence[KeyedTensor]) -> list[dict[str, Tensor]]:
    """The columns of each key of each part. They are tied like those of one KeyedTensor, and may be
    changed in place like those."""
    given: list[Tensor] = []
    widths: list[list[int]] = []
    for part in parts:
        if isinstance(part, LazyKeyedTensor):  # whose values nobody has joined
            given += part.to_dict().values()
            widths += [[width] for width in part.length_per_key()]
        else:
            given.append(part.values())
            widths.append(part.length_per_key())
    columns = iter(_Split.apply(widths, *given))
    return [dict(zip(keys, islice(columns, len(keys)), strict=True)) for keys in map(_keys, parts)]


def _keys(part: KeyedTensor) -> list[str]:
    keys: list[str] = part.keys()
    return keys


class _Split(Function):
    @staticmethod
    def forward(ctx: Any, widths: Sequence[list[int]], *values: Tensor) -> tuple[Tensor, ...]:
        ctx.widths = widths
        columns = (value.split(own, 1) for value, own in zip(values, widths, strict=True))
        return _own(column for own in columns for column in own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = iter(gradients)
        each = ([*islice(found, len(own))] for own in ctx.widths)
        return None, *(own[0] if len(own) == 1 else torch.cat(own, 1) for own in each)


class _Tie(Function):
    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, ...]:
        return _own(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def _own(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Tensors of the same memory, which torch does not know as several views of one tensor: those
    may not be changed in place."""
    return tuple(tensor.detach() for tensor in tensors)
