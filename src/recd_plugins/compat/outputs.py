"""What sharded collections yield: waited for, joined, and hooked by TorchRec's pipelines; as of
TorchRec 1.5 to 1.9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.types import LazyAwaitable
from torchrec.sparse.jagged_tensor import KeyedTensor

from recd_plugins.compat.pytorch import is_watched, was_written_to
from recd_plugins.errors import CapabilityError

__all__ = ["HasOwnExchange", "LazyKeyedTensor", "awaited"]


class LazyKeyedTensor(KeyedTensor):
    """A KeyedTensor of tensors that are joined only when its values are asked for.

    KeyedTensor's own methods, and torch's trees, read `_values`. Once somebody has changed these in
    place, as models change embeddings, or asks for their gradient, each key's values are a view of
    them, as in a KeyedTensor.
    """

    def __init__(self, tensors: Mapping[str, Tensor], widths: Sequence[int]) -> None:
        """`widths` are the widths of the tensors, which are [B, width] each."""
        self._tensors = dict(tensors)
        self._joined: Tensor | None = None
        super().__init__(
            keys=list(tensors),
            length_per_key=[*widths],
            values=None,  # joined when asked for
        )

    @property
    def _values(self) -> Tensor:
        if self._joined is None:
            self._joined = torch.cat(list(self._tensors.values()), dim=1)
        return self._joined

    @_values.setter
    def _values(self, values: Tensor | None) -> None:
        self._joined = values

    @property
    def _changed(self) -> bool:
        joined = self._joined
        return joined is not None and (was_written_to(joined) or is_watched(joined))

    def __getitem__(self, key: str) -> Tensor:
        return super().__getitem__(key) if self._changed else self._tensors[key]

    def to_dict(self) -> dict[str, Tensor]:
        return super().to_dict() if self._changed else dict(self._tensors)

    def device(self) -> torch.device:
        return next(iter(self._tensors.values())).device


class HasOwnExchange:
    """The output of a collection whose rows do not come only by TorchRec's exchange.

    TorchRec 1.8's `OutputDistTensorFinder` looks for `_awaitables` in an output, to hook the
    backward of that exchange. If an output has none, its error names a class of ours.
    """

    @property
    def _awaitables(self) -> Any:
        raise CapabilityError(
            "TorchRec's pipeline hooks the backward of a collection's exchange "
            "(OutputDistTensorFinder), but this collection has replicas, coalesced rows or unique "
            "samples, whose gradients take other ways too. Train with TrainPipelineSparseDist; or "
            "hook a dense module (InjectionTargetType.PARAM_GRAD); or leave the collection to "
            "TorchRec."
        )


def awaited(value: Any) -> Any:
    """What a sharded module yields, once it is there; any other value as it is. TorchRec keeps what
    was waited for by its private way alone: its `wait` would exchange anew."""
    return LazyAwaitable._wait_async(value)
