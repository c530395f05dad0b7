"""A KeyedJaggedTensor made over: with other ids, a feature more, or the mark of a hot batch."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["mark_of", "marked", "with_feature", "with_ids"]


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


def with_feature(
    features: KeyedJaggedTensor,
    name: str,
    values: Tensor,
    lengths: Tensor,
    weights: Tensor | None = None,
) -> KeyedJaggedTensor:
    """The same features and, behind them, one of this name: B rows of `lengths` [B].

    Its ids weigh 1 where those of others have weights and it was given none, and the other way
    about.
    """
    held, ids = features.weights_or_none(), features.values()
    if held is None and weights is not None:
        held = weights.new_ones(ids.numel())
    elif held is not None and weights is None:
        weights = held.new_ones(values.numel())
    own, known = features.lengths(), features.length_per_key_or_none()
    return type(features)(
        keys=[*features.keys(), name],
        values=_joined(ids, values.to(ids.dtype) if not ids.numel() else values),
        weights=None if held is None or weights is None else _joined(held, weights),
        lengths=_joined(own, lengths.to(own.dtype)),
        stride=features.stride(),
        length_per_key=None if known is None else [*known, values.numel()],
    )


def _joined(one: Tensor, other: Tensor) -> Tensor:
    """One behind the other. On the CPU torch's own cat wakes its threads; those belong to the
    model, and to wait for them costs more than they save."""
    if any(type(part) is not Tensor or part.dtype not in BY_NUMPY for part in (one, other)):
        return torch.cat((one, other))
    if not (one.is_cpu and other.is_cpu) or one.requires_grad or other.requires_grad:
        return torch.cat((one, other))
    return torch.from_numpy(np.concatenate((one.numpy(), other.numpy())))


BY_NUMPY = frozenset({torch.int32, torch.int64, torch.float32, torch.float64})


ATTRIBUTE = "hot_under"


def marked(features: KeyedJaggedTensor, hot_under: str | None) -> KeyedJaggedTensor:
    """The same features with this mark, or none; the KJT handed over does not change.

    The mark names the tier plan under which the batch is hot, for a plan may change while a batch
    is under way. It is on the KJTs, so it reaches modules that are handed a KJT alone. Moves and
    pinning keep it. What makes another KJT loses it, and the batch is then a normal one: slower,
    as right.
    """
    if mark_of(features) == hot_under:
        return features
    from recd_plugins.sparse.hot import hot_kind

    other = copy(features)
    other.__class__ = hot_kind(type(features), hot_under is not None)
    setattr(other, ATTRIBUTE, hot_under)
    return other


def mark_of(features: KeyedJaggedTensor) -> str | None:
    """The version of the tier plan under which every rank's ids are replicated, if they are."""
    mark: str | None = getattr(features, ATTRIBUTE, None)
    return mark
