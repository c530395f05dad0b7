"""A KJT that keeps its mark of a hot batch wherever a trainer's own batch moves it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.pytorch import pytree
from recd_plugins.sparse.keyed import mark_of, marked

__all__ = ["HotKeyedJaggedTensor", "hot_kind"]


class HotKeyedJaggedTensor(KeyedJaggedTensor):
    """TorchRec's class makes another KJT when it is moved or pinned: this class marks that KJT
    again."""

    def to(
        self,
        device: torch.device,
        non_blocking: bool = False,
        dtype: torch.dtype | None = None,
    ) -> KeyedJaggedTensor:
        return marked(super().to(device, non_blocking, dtype), mark_of(self))

    def pin_memory(self) -> KeyedJaggedTensor:
        return marked(super().pin_memory(), mark_of(self))


def hot_kind(kind: type[KeyedJaggedTensor], hot: bool) -> type[KeyedJaggedTensor]:
    """The class for a KJT with or without a mark; a foreign subclass stays as it is."""
    if kind not in (KeyedJaggedTensor, HotKeyedJaggedTensor):
        return kind
    return HotKeyedJaggedTensor if hot else KeyedJaggedTensor


def _flatten(kjt: KeyedJaggedTensor) -> tuple[list[Tensor], tuple[Any, ...]]:
    weights = kjt.weights_or_none()
    tensors = [kjt.values(), kjt.lengths()]
    context = (kjt.keys(), kjt.stride(), mark_of(kjt))
    return (tensors if weights is None else [*tensors, weights]), context


def _unflatten(leaves: Iterable[Any], context: tuple[Any, ...]) -> KeyedJaggedTensor:
    keys, stride, mark = context
    values, lengths, *weights = leaves
    kjt = KeyedJaggedTensor(
        keys=keys,
        values=values,
        lengths=lengths,
        weights=weights[0] if weights else None,
        stride=stride,
    )
    return marked(kjt, mark)


pytree.register_pytree_node(
    HotKeyedJaggedTensor,
    _flatten,
    _unflatten,
    serialized_type_name=f"{__name__}.{HotKeyedJaggedTensor.__qualname__}",
)
