"""A dataclass of KJTs and tensors that is moved, pinned and flattened as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from recd_plugins.compat.pytorch import pytree
from recd_plugins.sparse.keyed import mark_of, marked

__all__ = ["Bundle", "counted"]


class Bundle(Pipelineable):
    """Base class of such dataclasses; fields that are not a KJT, tensor or bundle stay as they are.

    Each subclass is registered with torch's trees (pytree).
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        pytree.register_pytree_node(
            cls,
            _flatten,
            lambda leaves, context: _unflatten(cls, iter(leaves), context),
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        )

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        return self._each(lambda part: counted(part).to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self._each(lambda part: counted(part).pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        for part in _fields(self).values():
            if isinstance(part, MOVED):
                part.record_stream(stream)

    def _each(self, move: Callable[[Any], Any]) -> Self:
        moved = {
            name: move(part) for name, part in _fields(self).items() if isinstance(part, MOVED)
        }
        return dataclasses.replace(self, **moved)


MOVED = (Tensor, KeyedJaggedTensor, Bundle)


def counted(part: Any) -> Any:
    """The same part; where a KJT is on the CPU, one on its tensors whose keys' ids are counted, so
    that nobody need ask a device for it."""
    if isinstance(part, Bundle) or not isinstance(part, KeyedJaggedTensor):
        return part
    # Counts stay with a KJT, and a trainer may fill the tensors of its own anew for each batch.
    device = part.device()
    return part.to(device).sync() if device.type == "cpu" else part


def _fields(bundle: Any) -> dict[str, Any]:
    return {field.name: getattr(bundle, field.name) for field in dataclasses.fields(bundle)}


def _flatten(bundle: Bundle) -> tuple[list[Tensor], list[Any]]:
    """A bundle's tensors, and for each field how to make it again from them, or the field
    itself."""
    leaves: list[Tensor] = []
    context: list[Any] = []
    for part in _fields(bundle).values():
        match part:
            case Bundle():  # first, because a bundle that stands for a KJT would be taken for one
                inner, how = _flatten(part)
                leaves += inner
                context.append(("bundle", type(part), how))
            case KeyedJaggedTensor():  # not as a leaf: in torch's trees it forgets its stride
                weights = part.weights_or_none()
                tensors = [part.values(), part.lengths()]
                leaves += tensors if weights is None else [*tensors, weights]
                context.append(
                    ("kjt", part.keys(), part.stride(), weights is not None, mark_of(part))
                )
            case Tensor():
                leaves.append(part)
                context.append(("tensor",))
            case _:
                context.append(("plain", part))
    return leaves, context


def _unflatten(kind: type[Bundle], leaves: Iterator[Any], context: list[Any]) -> Bundle:
    parts: list[Any] = []
    for entry in context:
        match entry:
            case ("kjt", keys, stride, weighted, mark):
                values, lengths = next(leaves), next(leaves)
                weights = next(leaves) if weighted else None
                kjt = KeyedJaggedTensor(
                    keys=keys, values=values, lengths=lengths, weights=weights, stride=stride
                )
                parts.append(marked(kjt, mark))
            case ("tensor",):
                parts.append(next(leaves))
            case ("bundle", inner, how):
                parts.append(_unflatten(inner, leaves, how))
            case ("plain", part):
                parts.append(part)
    return kind(*parts)
