"""A KeyedJaggedTensor made over: with other ids under its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["with_ids"]


def with_ids(
    features: KeyedJaggedTensor,
    values: Tensor,
    *,
    lengths: Tensor | None = None,
    weights: Tensor | None = None,
) -> KeyedJaggedTensor:
    """The same keys and rows, other ids; in rows of `lengths`, by default the same as before.

    Weights stay as they are, unless the lengths change: then those given count.
    """
    kind = type(features)  # not imported: plugins that use this are imported by `recd plugins` too
    kept = lengths is None
    ragged = features.variable_stride_per_key()
    return kind(
        keys=features.keys(),
        values=values,
        weights=features.weights_or_none() if kept else weights,
        lengths=features.lengths() if lengths is None else lengths,
        offsets=features.offsets_or_none() if kept else None,
        stride=None if ragged else features.stride(),
        stride_per_key_per_rank=features.stride_per_key_per_rank() if ragged else None,
        length_per_key=features.length_per_key_or_none() if kept else None,
        inverse_indices=features.inverse_indices_or_none(),
    )
